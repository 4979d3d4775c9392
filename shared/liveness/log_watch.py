"""Notices that the token log has lost records which this process has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, LogWentBack
from shared.storage.stream_quorum import has_quorum
from shared.storage.streams import ERR_STREAM_NOT_FOUND

_INTERVAL_S = 2.0
_TICK_S = 0.1  # also when nothing moves: less than a connection waits before it is made again
_TIMES = 2  # in a row


class LogMark(NamedTuple):
    """A record of the log that this process has seen."""

    seq: int
    data: bytes | None = None  # None: only its place is known


class LogWatch:
    """After a power loss, or over damaged blocks, nats-server may restart with a shorter log.

    Its sequence numbers then go back, and are given out again: whoever waits for higher ones than
    it has seen would wait for ever, and who goes on would mix two histories. Such a process ends,
    and is started anew. What a server says that a quorum does not stand behind counts for nothing.
    """

    def __init__(self, cluster: Cluster, last_seen: Callable[[], LogMark]) -> None:
        self._cluster = cluster
        self._last_seen = last_seen

    async def run(self) -> None:
        """Until cancelled. Raises LogWentBack."""
        num_times = 0
        unchecked: LogMark | None = None
        while True:
            mark = await self._earlier_mark()
            unchecked = unchecked or mark
            try:
                loss = await self._loss(unchecked)
            except BrokerError:
                num_times = 0
                continue
            if loss is None:
                num_times, unchecked = 0, None
                continue
            num_times += 1
            if num_times >= _TIMES:
                raise LogWentBack(f"the token log {loss}: NATS has lost records")

    async def _earlier_mark(self) -> LogMark:
        """What had been seen some time ago, or when the connection was lost: by now the log may
        have grown beyond that again, with other records.
        """
        reconnects = self._cluster.nc.stats["reconnects"]
        first = latest = self._last_seen()
        for _ in range(round(_INTERVAL_S / _TICK_S)):
            await asyncio.sleep(_TICK_S)
            if self._cluster.nc.stats["reconnects"] != reconnects:
                return latest
            latest = self._last_seen()
        return first

    async def _loss(self, mark: LogMark) -> str | None:
        """What is wrong with the log, in words. Raises BrokerError."""
        seen = max(mark.seq, self._last_seen().seq)
        try:
            last = await last_seq(self._cluster)
        except BrokerError as exc:
            if exc.err_code != ERR_STREAM_NOT_FOUND:
                raise
            return f"is gone, and was at {seen}"
        if last < seen:
            return f"ends at {last}, and was at {seen}"
        if mark.data is None:
            return None
        stored = await self._cluster.js.get_at(self._cluster.subjects.tokens_stream, mark.seq)
        if stored is None or stored.data == mark.data:  # it may be too old, or erased
            return None
        return f"has another record at {mark.seq} than before"


async def last_seq(cluster: Cluster) -> int:
    """Where the token log ends. Raises BrokerError."""
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.tokens_stream}")
    if not has_quorum(info):
        raise BrokerUnavailable("the server that tells of the token log has no quorum")
    return int(info["state"]["last_seq"])
