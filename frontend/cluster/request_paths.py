"""The workers that a request has been on, as its ownership log tells."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frontend.inference.telemetry.recent_requests import RecentRequest
from shared.protocol.log_records import Claim, End, Release
from shared.token_log.ownership import OwnershipLog, StoredRecord

_MAX_READS = 16  # at a time
_MAX_RECORDS = 64  # of a request that goes round and round


class Left(enum.StrEnum):
    """Why a request left a worker before its end."""

    RELEASED = "released"  # handed over: drained, paused, or short of room
    ENGINE_CRASHED = "engine_crashed"
    DIED = "died"  # the worker
    OVERTAKEN = "overtaken"  # another one claimed it: the worker was silent for too long
    ENDED = "ended"  # somebody ended it: its client is gone, or its deadline has passed


@dataclass(frozen=True, slots=True)
class Hop:
    """A stay on one worker."""

    worker: str
    epoch: int  # where its claim stands in the log
    at: float  # unix seconds of the server's clock
    left: Left | None = None


@dataclass(slots=True)
class _Reading:
    records: list[StoredRecord] = field(default_factory=list)
    is_whole: bool = False  # nothing will follow


class RequestPaths:
    """Reads what is new of each log, one read a second for a request that runs."""

    def __init__(self, ownership: OwnershipLog) -> None:
        self._ownership = ownership
        self._readings: dict[str, _Reading] = {}  # by rid
        self._slots = asyncio.Semaphore(_MAX_READS)

    async def read(self, requests: Sequence[RecentRequest]) -> Mapping[str, Sequence[Hop]]:
        """The paths of all their choices, by rid; others are forgotten. Raises BrokerError."""
        rids = {rid: request.status is not None for request in requests for rid in request.rids}
        self._readings = {rid: self._readings.get(rid, _Reading()) for rid in rids}
        await asyncio.gather(*(self._go_on(rid, is_over) for rid, is_over in rids.items()))
        return {rid: path_of(reading.records) for rid, reading in self._readings.items()}

    async def _go_on(self, rid: str, is_over: bool) -> None:
        reading = self._readings[rid]
        async with self._slots:
            while not reading.is_whole:
                seq = reading.records[-1].seq + 1 if reading.records else 1
                found = await self._ownership.first_from(rid, seq)
                if found is None:
                    reading.is_whole = is_over
                    return
                reading.records.append(found)
                reading.is_whole = len(reading.records) >= _MAX_RECORDS


def path_of(records: Iterable[StoredRecord]) -> Sequence[Hop]:
    """One hop a claim."""
    hops: list[Hop] = []
    for stored in records:
        match stored.record:
            case Claim(worker=worker, after_death=is_dead):
                _leave(hops, Left.DIED if is_dead else Left.OVERTAKEN)
                hops.append(Hop(worker, stored.seq, stored.time.timestamp()))
            case Release(crashed=is_crashed):
                _leave(hops, Left.ENGINE_CRASHED if is_crashed else Left.RELEASED)
            case End():
                _leave(hops, Left.ENDED)
    return tuple(hops)


def _leave(hops: list[Hop], why: Left) -> None:
    if hops and hops[-1].left is None:
        hops[-1] = replace(hops[-1], left=why)
