"""A request met in the middle of its log: what is read of it waits until its past is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from detok.decode_status import DecodeStatus
from shared.broker.piece_chain import PieceChain
from shared.cluster import Cluster
from shared.protocol.log_records import OwnershipRecord, TokenEntry


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
