"""The bucket that says who owns what: a lease for each detokenizer, an owner for each partition."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket, KvEntry
from shared.errors import CasConflict, ProtocolError
from shared.protocol.codec import decode, encode
from shared.protocol.leases import LeaseRecord, PartitionOwner
from shared.subjects import Subjects

FREE = b""  # of a partition: nobody's; of a lease: ended by somebody else
LONGEST_PERIOD_S = 10.0
_LEASE = "lease-"


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease as the bucket has it."""

    holder: str
    period_s: float
    revision: int
    has_presence: bool = False


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """Whose a partition is; None: nobody's that can be read."""

    owner: PartitionOwner | None
    revision: int


@dataclass(frozen=True, slots=True)
class OwnerSurvey:
    """All of the bucket, possibly a moment old; what is absent may only have been missed."""

    leases: dict[str, LeaseSeen] = field(default_factory=dict)  # by nonce
    ended: set[str] = field(default_factory=set)  # nonces
    owners: dict[int, OwnerSeen] = field(default_factory=dict)


def nonce_of(key: str) -> str | None:
    """The nonce of the lease under this key; None: it is no lease's."""
    return key.removeprefix(_LEASE) if key.startswith(_LEASE) else None


class OwnerTable:
    """All writes are compare-and-set, but for the removal of leases that have ended."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._bucket = KvBucket(js, subjects.owners_bucket)

    async def survey(self) -> OwnerSurvey:
        """Raises BrokerError."""
        survey = OwnerSurvey()
        for entry in await self._bucket.entries():
            nonce = nonce_of(entry.key)
            if entry.key.isdecimal():
                survey.owners[int(entry.key)] = _owner_seen(entry)
            elif nonce is None:
                continue  # not ours
            elif entry.value == FREE:
                survey.ended.add(nonce)
            else:
                survey.leases[nonce] = _lease_seen(entry)
        return survey

    async def lease(self, nonce: str) -> LeaseSeen | None:
        """As the leader has it; None: it has ended. Raises BrokerError."""
        entry = await self._bucket.get(_LEASE + nonce)
        return None if entry is None or entry.value == FREE else _lease_seen(entry)

    async def owner(self, partition: int) -> OwnerSeen | None:
        """As the leader has it. Raises BrokerError."""
        entry = await self._bucket.get(str(partition))
        return None if entry is None else _owner_seen(entry)

    async def write_lease(self, record: LeaseRecord, revision: int) -> int:
        """Raises CasConflict, BrokerError."""
        return await self._bucket.put_if(_LEASE + record.nonce, encode(record), revision)

    async def end_lease(self, nonce: str, revision: int) -> None:
        """From here on its holder cannot renew it. Raises CasConflict, BrokerError."""
        await self._bucket.put_if(_LEASE + nonce, FREE, revision)

    async def remove_lease(self, nonce: str) -> None:
        """One's own, or one that has ended: nothing is stored under its key again."""
        await self._bucket.delete(_LEASE + nonce)

    async def write_owner(self, partition: int, owner: PartitionOwner | None, revision: int) -> int:
        """Raises CasConflict, BrokerError."""
        value = FREE if owner is None else encode(owner)
        return await self._bucket.put_if(str(partition), value, revision)

    async def free_those_of(self, holder: str) -> None:
        """Free all that a dead detokenizer held. Raises BrokerError."""
        survey = await self.survey()
        for nonce, lease in survey.leases.items():
            if lease.holder == holder:
                with contextlib.suppress(CasConflict):  # its last renewal was on the way
                    await self.end_lease(nonce, lease.revision)
        freed = [
            self._free(partition, seen.revision)
            for partition, seen in survey.owners.items()
            if seen.owner is not None and seen.owner.holder == holder
        ]
        await asyncio.gather(*freed)

    async def _free(self, partition: int, revision: int) -> None:
        with contextlib.suppress(CasConflict):  # it is another's by now
            await self.write_owner(partition, None, revision)

    async def holders(self) -> dict[int, str]:
        """Detokenizer of each owned partition, possibly a moment old. Raises BrokerError."""
        survey = await self.survey()
        return {
            partition: seen.owner.holder
            for partition, seen in survey.owners.items()
            if seen.owner is not None
        }


def _owner_seen(entry: KvEntry) -> OwnerSeen:
    try:
        owner = decode(PartitionOwner, entry.value)
    except ProtocolError:
        return OwnerSeen(None, entry.revision)
    return OwnerSeen(owner, entry.revision)


def _lease_seen(entry: KvEntry) -> LeaseSeen:
    """One that cannot be read is somebody's, for as long as any lease may last."""
    try:
        record = decode(LeaseRecord, entry.value)
    except ProtocolError:
        return LeaseSeen("", LONGEST_PERIOD_S, entry.revision)
    period_s = min(record.period_ms / 1000, LONGEST_PERIOD_S)
    return LeaseSeen(record.holder, period_s, entry.revision, record.has_presence)
