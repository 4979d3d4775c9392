"""Notices that the token log has lost records which this process has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.cluster import Cluster
from shared.errors import BrokerError, LogWentBack

_INTERVAL_S = 2.0
_TIMES = 2  # in a row: servers of a cluster may say something old while they choose a leader


class LogWatch:
    """After a power loss, or over damaged blocks, nats-server may restart with a shorter log.

    Its sequence numbers then go back, and are given out again: whoever waits for higher ones than
    it has seen would wait for ever. Such a process ends, and is started anew.
    """

    def __init__(self, cluster: Cluster, last_seen: Callable[[], int]) -> None:
        self._cluster = cluster
        self._last_seen = last_seen

    async def run(self) -> None:
        """Until cancelled. Raises LogWentBack."""
        num_times = 0
        while True:
            await asyncio.sleep(_INTERVAL_S)
            seen = self._last_seen()
            try:
                last = await last_seq(self._cluster)
            except BrokerError:
                continue
            num_times = num_times + 1 if last < seen else 0
            if num_times >= _TIMES:
                raise LogWentBack(
                    f"the token log ends at {last}, and was at {seen}: NATS has lost records"
                )


async def last_seq(cluster: Cluster) -> int:
    """Where the token log ends. Raises BrokerError."""
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.tokens_stream}")
    return int(info["state"]["last_seq"])
