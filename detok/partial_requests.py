"""Requests met in the middle of their log: what is read of one waits until its past is known, and
what was generated before that is read when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from detok.decode_status import DecodeStatus
from detok.full_fold import fold_from_log
from detok.worker_watch import Holders
from shared.broker.piece_chain import PieceChain
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.protocol.log_records import OwnershipRecord, TokenEntry
from shared.telemetry.log import get_logger
from shared.token_log.fold import RequestFold

_RETRY_S = 0.3
_CHECK_S = 30.0  # a living writer restates more often
_MAX_READS_AT_ONCE = 16

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """An entry, and the frame that held it."""

    seq: int
    worker: str
    entry: TokenEntry
    time_s: float  # when it was stored, by the broker


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """An ownership record."""

    seq: int
    record: OwnershipRecord
    time_s: float


@dataclass(slots=True)
class UnknownRequest:
    """First seen at `seq`; `seen` holds everything from there on, in order."""

    rid: str
    seq: int
    seen: list[SeenEntry | SeenRecord] = field(default_factory=list)

    async def done(self, cluster: Cluster) -> bytes | None:
        """The result that is stored, as it is stored. A leader read; raises BrokerError."""
        subjects = cluster.subjects
        return await PieceChain(cluster.js, subjects.results_stream).read(subjects.done(self.rid))

    async def resolve(self, cluster: Cluster) -> DecodeStatus | None:
        """Its state as of `seq`, if it has no result; None when nobody ever owned it.

        All reads are leader reads. Raises BrokerError.
        """
        records = await cluster.ownership.read(self.rid)
        before = [stored for stored in records if stored.seq < self.seq]
        if not before and isinstance(self.seen[0], SeenEntry):
            return None
        status = DecodeStatus(self.rid, self.seq, is_partial=True)
        for stored in before:
            status.apply_record(stored.seq, stored.record, stored.time.timestamp())
        status.rebuild_point.restart_at(self.seq)
        return status


class PartialRequests:
    """Makes whole what was read of a partition's requests from their middle on.

    All of it is read from the log, by a few at a time; while the broker does not answer it is tried
    again.
    """

    def __init__(
        self,
        cluster: Cluster,
        requests: Mapping[str, DecodeStatus],
        holders: Holders,
        on_over: Callable[[DecodeStatus], None],
    ) -> None:
        """`on_over` hears of those that have been over for long."""
        self._cluster = cluster
        self._requests = requests  # the living ones, by rid: whole or not
        self._holders = holders
        self._on_over = on_over
        self._reads = asyncio.Semaphore(_MAX_READS_AT_ONCE)

    async def past_of(self, unknown: UnknownRequest) -> tuple[bytes | None, DecodeStatus | None]:
        """Its result, as it is stored, or else its state where it was met; nothing of one that
        nobody ever owned.
        """
        while True:
            try:
                async with self._reads:
                    done = await unknown.done(self._cluster)
                    return done, await unknown.resolve(self._cluster) if done is None else None
            except BrokerError as exc:
                log.warning("request_not_resolved", rid=unknown.rid, error=str(exc))
                await asyncio.sleep(_RETRY_S)

    async def complete(self, status: DecodeStatus, seq: int) -> None:
        """It has ended, as it seems: fold all of it, up to `seq`."""
        while status.is_partial:
            fold = await self._whole_fold(status.rid, seq)
            if fold is None or fold.finish is None:
                if status.fold.finish is None:
                    return
                fold = status.fold
            self._adopt(status, fold)

    async def run(self) -> None:
        """Look, until cancelled, for late frames that woke up a request which finished long ago,
        and which nobody will restate.

        It would be live for ever, and hold the floor. At the first look its finish may only be
        ahead of what was read here.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(_CHECK_S / 4)
                now = time.monotonic()
                for status in list(self._requests.values()):
                    if status.is_partial and now - status.checked_at > _CHECK_S:
                        status.checked_at = now
                        tasks.create_task(self._look_at(status))

    async def _look_at(self, status: DecodeStatus) -> None:
        fold = await self._whole_fold(status.rid, 0)
        if fold is None or fold.finish is None or status.fold.finish is not None:
            return
        if status.seemed_over:  # long ago: it has its bill
            self._adopt(status, fold)
            self._on_over(status)
        status.seemed_over = True

    async def _whole_fold(self, rid: str, seq: int) -> RequestFold | None:
        while True:
            try:
                async with self._reads:
                    return await fold_from_log(self._cluster, rid, seq)
            except BrokerError as exc:
                log.warning("request_not_folded", rid=rid, error=str(exc))
                await asyncio.sleep(_RETRY_S)

    def _adopt(self, status: DecodeStatus, fold: RequestFold) -> None:
        if status.is_partial:
            status.adopt(fold)
            self._holders.note(status)
