"""The floor of a partition: where a new owner starts to read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.liveness.log_watch import last_seq
from shared.telemetry.log import get_logger

_INTERVAL_S = 1.0
_RETRY_S = 0.3
_MAX_DIGITS = 20

log = get_logger(__name__)


class FloorKeeper:
    """Writes are not fenced: a floor that is too low only costs reading, and none is too high.

    Whoever was an owner has read up to its floor, and what was live to it then needs nothing below.
    """

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self._cluster = cluster
        self._bucket = cluster.bucket(cluster.subjects.floors_bucket)
        self._key = str(partition)

    async def load(self) -> int:
        """The last floor written; 1 when there is none, or the log ends below it."""
        while True:
            try:
                entry = await self._bucket.get(self._key)
                end = await last_seq(self._cluster)
            except BrokerError as exc:
                log.warning("floor_not_read", partition=self._key, error=str(exc))
                await asyncio.sleep(_RETRY_S)
                continue
            if entry is None or len(entry.value) > _MAX_DIGITS or not entry.value.isdigit():
                return 1
            floor = int(entry.value)
            if floor > end + 1:
                log.error("log_went_back", partition=self._key, floor=floor, end=end)
                return 1
            return floor

    async def run(self, floor: Callable[[], int | None]) -> None:
        """Write `floor()` every second when it changed; None says that there is nothing to say."""
        written: int | None = None
        while True:
            await asyncio.sleep(_INTERVAL_S)
            wanted = floor()
            if wanted is None or wanted == written:
                continue
            with contextlib.suppress(BrokerError):
                await self._bucket.put(self._key, b"%d" % wanted)
                written = wanted
