"""Notices that the token log has lost records which this process has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from shared.broker.stream_info import has_quorum
from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, LogWentBack
from shared.event_wait import beat_s, wait_event
from shared.storage.streams import ERR_STREAM_NOT_FOUND

_INTERVAL_S = 2.0
_SINGLE_S = 10.0  # one server cannot restart without our connection to it
_TIMES = 2  # in a row


class LogMark(NamedTuple):
    """A record of the log that this process has seen."""

    seq: int
    data: bytes | None = None  # None: only its place is known


class _LogEnd(NamedTuple):
    """The last record of a log: two histories do not end in the same one."""

    seq: int
    stored_at: str  # to the nanosecond, by the server


class LogWatch:
    """After a power loss, or over damaged blocks, nats-server may restart with a shorter log.

    Its sequence numbers then go back, and are given out again: whoever waits for higher ones than
    it has seen would wait for ever, and who goes on would mix two histories. Such a process ends,
    and is started anew. What a server says that a quorum does not stand behind counts for nothing.
    """

    def __init__(self, cluster: Cluster, last_seen: Callable[[], LogMark]) -> None:
        self._cluster = cluster
        self._last_seen = last_seen
        self._seen_at_losses: list[LogMark] = []  # when the connection was lost
        self._is_back = asyncio.Event()
        self._interval_s = _INTERVAL_S
        self._proven: tuple[LogMark, _LogEnd] | None = None  # this mark stands in that log
        cluster.reconnects.follow_losses(self._on_loss)
        cluster.reconnects.follow(self._on_reconnect)

    def _on_loss(self) -> None:
        self._seen_at_losses.append(self._last_seen())

    async def _on_reconnect(self) -> None:
        self._is_back.set()

    async def run(self) -> None:
        """Until cancelled. Raises LogWentBack."""
        num_times = 0
        unchecked: list[LogMark] = []
        while True:
            if not num_times:
                marks = await self._earlier_marks()
                unchecked += [mark for mark in marks if mark not in unchecked]
            try:
                loss = await self._loss(unchecked)
            except BrokerError:
                num_times, self._interval_s = 0, _INTERVAL_S
                continue
            if loss is None:
                num_times, unchecked = 0, []
                continue
            num_times += 1
            if num_times >= _TIMES:
                raise LogWentBack(f"the token log {loss}: NATS has lost records")
            await asyncio.sleep(_INTERVAL_S)

    async def _earlier_marks(self) -> list[LogMark]:
        """What had been seen some time ago, or whenever the connection was lost: by now the log may
        have grown beyond that again, with other records.
        """
        first = self._last_seen()
        await wait_event(self._is_back, beat_s(self._interval_s))
        self._is_back.clear()
        at_losses, self._seen_at_losses = self._seen_at_losses, []
        return at_losses or [first]

    async def _loss(self, marks: list[LogMark]) -> str | None:
        """What is wrong with the log, in words. Raises BrokerError."""
        seen = max(mark.seq for mark in [*marks, self._last_seen()])
        try:
            info = await _log_info(self._cluster)
        except BrokerError as exc:
            if exc.err_code != ERR_STREAM_NOT_FOUND:
                raise
            return f"is gone, and was at {seen}"
        self._interval_s = _SINGLE_S if _is_single(self._cluster, info) else _INTERVAL_S
        state = info["state"]
        end = _LogEnd(int(state["last_seq"]), state["last_ts"])
        if end.seq < seen:
            return f"ends at {end.seq}, and was at {seen}"
        for mark in marks:
            if mark.data is None or self._proven == (mark, end):
                continue
            stored = await self._cluster.js.get_at(self._cluster.subjects.tokens_stream, mark.seq)
            if stored is not None and stored.data != mark.data:  # None: it is too old, or erased
                return f"has another record at {mark.seq} than before"
            self._proven = mark, end
        return None


async def last_seq(cluster: Cluster) -> int:
    """Where the token log ends. Raises BrokerError."""
    return int((await _log_info(cluster))["state"]["last_seq"])


async def _log_info(cluster: Cluster) -> dict[str, Any]:
    """Raises BrokerError."""
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.tokens_stream}")
    if not has_quorum(info):
        raise BrokerUnavailable("the server that tells of the token log has no quorum")
    return info


def _is_single(cluster: Cluster, info: dict[str, Any]) -> bool:
    """Whether the server that has the log is alone, and ours."""
    return "name" not in info.get("cluster", {}) and cluster.js.domain is None
