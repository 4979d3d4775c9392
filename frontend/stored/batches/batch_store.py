"""The records of all batches, and the marks that say which are unfinished and who drives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.stored.batches.batch_record import BatchRecord, is_batch_id
from frontend.tenants.tenant import ANYONE
from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, NotFound, ProtocolError, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.telemetry.log import get_logger

_ACTIVE = "active."

log = get_logger(__name__)


class BatchMark(msgspec.Struct, frozen=True):
    """The mark of a batch that is not over: a key of the bucket `batches`."""

    owner: str
    driver: str  # the frontend that drives it; "": nobody


@dataclass(frozen=True, slots=True)
class ActiveBatch:
    """A batch that is not over, or whose remains somebody has to clear away."""

    batch_id: str
    owner: str
    driver: str
    revision: int  # of the mark


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record and the revision under which it was read or written."""

    record: BatchRecord
    revision: int


@dataclass(frozen=True, slots=True)
class OlderBatch(StoredBatch):
    """A batch of the store that the service has moved away from, where it is driven to its end."""


class BatchStore:
    """Keys are `of.<owner>.<batch>` for records, `active.<batch>` for marks.

    The mark is made before the record and removed after all that a batch leaves behind: so none is
    forgotten, whoever dies.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._bucket = cluster.bucket(cluster.subjects.batches_bucket)

    async def create(self, record: BatchRecord) -> None:
        """Raises ServiceUnavailable."""
        try:
            mark = _ACTIVE + record.id
            await self._bucket.put_if(mark, encode(BatchMark(record.owner, "")), 0)
            await self._bucket.put_if(_key(record.owner, record.id), encode(record), 0)
            if await self._bucket.get(mark) is None:  # we were so slow that it was cleared away
                await self._bucket.put_if(mark, encode(BatchMark(record.owner, "")), 0)
        except BrokerError as exc:
            raise ServiceUnavailable("The batch could not be stored now.") from exc

    async def find(self, batch_id: str, owner: str) -> StoredBatch | None:
        """Raises BrokerError or ProtocolError."""
        entry = await self._bucket.get(_key(owner, batch_id))
        if entry is None:
            return None
        return StoredBatch(decode(BatchRecord, entry.value), entry.revision)

    async def get(self, batch_id: str, owner: str) -> StoredBatch:
        """Raises NotFound or ServiceUnavailable."""
        found = None
        try:
            if is_batch_id(batch_id):
                found = await self.find(batch_id, owner)
        except BrokerError as exc:
            raise ServiceUnavailable("The batches cannot be read now.") from exc
        except ProtocolError as exc:
            log.error("batch_unreadable", batch=batch_id, error=str(exc))
        if found is None:
            raise NotFound(
                f"No batch {batch_id[:64]!r} is known: it may be too old, or belong to another "
                "API key.",
                param="id",
                code="batch_not_found",
            )
        return found

    async def all(self, owner: str) -> list[BatchRecord]:
        """The batches of an owner, in the order in which they were made.

        Raises ServiceUnavailable.
        """
        try:
            entries = await self._bucket.entries(f"of.{owner or ANYONE}.")
        except BrokerError as exc:
            raise ServiceUnavailable("The batches cannot be read now.") from exc
        records = readable(BatchRecord, entries)
        return sorted(records, key=lambda record: (record.created, record.id))

    async def change(self, stored: StoredBatch, **changes: Any) -> StoredBatch:
        """Raises CasConflict when somebody else has changed it, or BrokerError."""
        record = msgspec.structs.replace(stored.record, **changes)
        key = _key(record.owner, record.id)
        revision = await self._bucket.put_if(key, encode(record), stored.revision)
        return StoredBatch(record, revision)

    async def active(self) -> list[ActiveBatch]:
        """Possibly a moment old. Raises BrokerError."""
        found = []
        for entry in await self._bucket.entries(_ACTIVE):
            try:
                mark = decode(BatchMark, entry.value)
            except ProtocolError as exc:
                log.debug("batch_mark_unreadable", key=entry.key, error=str(exc))
                continue
            batch_id = entry.key.removeprefix(_ACTIVE)
            found.append(ActiveBatch(batch_id, mark.owner, mark.driver, entry.revision))
        return found

    async def drive(self, batch: ActiveBatch, driver: str) -> bool:
        """Write who drives it; False when somebody else was faster. Raises BrokerError."""
        mark = encode(BatchMark(batch.owner, driver))
        try:
            await self._bucket.put_if(_ACTIVE + batch.batch_id, mark, batch.revision)
        except CasConflict:
            return False
        return True

    async def forget(self, batch_id: str) -> None:
        """There is nothing left to do for it. Raises BrokerError."""
        await self._bucket.delete(_ACTIVE + batch_id)

    async def erase(self, batch_id: str, owner: str) -> None:
        """Record and mark. Who drives it finds it gone, and stops. Raises BrokerError."""
        await self._bucket.erase(_key(owner, batch_id))
        await self._bucket.erase(_ACTIVE + batch_id)


class MovingBatchStore(BatchStore):
    """A store with that which the service has moved away from.

    A batch stays where it was made: who drives it there finds it there.
    """

    def __init__(self, cluster: Cluster, older: BatchStore | None) -> None:
        super().__init__(cluster)
        self._older = older

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def find(self, batch_id: str, owner: str) -> StoredBatch | None:
        found = await super().find(batch_id, owner)
        if found is None and self._older is not None:
            older = await self._older.find(batch_id, owner)
            found = None if older is None else OlderBatch(older.record, older.revision)
        return found

    async def all(self, owner: str) -> list[BatchRecord]:
        records = await super().all(owner)
        if self._older is not None:
            records += await self._older.all(owner)
        return sorted(records, key=lambda record: (record.created, record.id))

    async def change(self, stored: StoredBatch, **changes: Any) -> StoredBatch:
        if isinstance(stored, OlderBatch) and self._older is not None:
            changed = await self._older.change(stored, **changes)
            return OlderBatch(changed.record, changed.revision)
        return await super().change(stored, **changes)


def _key(owner: str, batch_id: str) -> str:
    return f"of.{owner or ANYONE}.{batch_id}"
