"""The floor of a partition: where a new owner starts to read."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Mapping

from detok.decode_status import DecodeStatus
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.event_wait import beat_s
from shared.liveness.log_watch import last_seq
from shared.telemetry.log import get_logger

_INTERVAL_S = 1.0
_RETRY_S = 0.3
_MAX_DIGITS = 20
_FEW = 64

log = get_logger(__name__)


class LowestPoint:
    """The lowest point from which a living request is rebuilt.

    Points only rise: what was noted is at most as high as the point is, and only the lowest of
    these are looked at.
    """

    def __init__(self, requests: Mapping[str, DecodeStatus]) -> None:
        self._requests = requests  # the living ones, by rid
        self._noted: list[tuple[int, str]] = []  # a heap

    def note(self, status: DecodeStatus) -> None:
        """It lives from now on."""
        heapq.heappush(self._noted, (status.rebuild_point.seq, status.rid))
        if len(self._noted) > 2 * len(self._requests) + _FEW:  # the lowest hides many that are over
            self._noted = [(each.rebuild_point.seq, rid) for rid, each in self._requests.items()]
            heapq.heapify(self._noted)

    def seq(self) -> int | None:
        """None: nothing lives."""
        while self._noted:
            seq, rid = self._noted[0]
            status = self._requests.get(rid)
            if status is None:
                heapq.heappop(self._noted)
            elif status.rebuild_point.seq != seq:
                heapq.heapreplace(self._noted, (status.rebuild_point.seq, rid))
            else:
                return seq
        return None


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
            await asyncio.sleep(beat_s(_INTERVAL_S))
            wanted = floor()
            if wanted is None or wanted == written:
                continue
            with contextlib.suppress(BrokerError):
                await self._bucket.put(self._key, b"%d" % wanted)
                written = wanted
