"""The files of all API keys: records in KV, contents in the object store."""

from __future__ import annotations

import time
from typing import IO

from frontend.stored.files.file_contents import FileContents
from frontend.stored.files.file_record import FileRecord, Purpose, is_file_id
from frontend.tenants.tenant import ANYONE
from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    LimitReached,
    NotFound,
    ProtocolError,
    ServiceUnavailable,
    StorageFull,
)
from shared.protocol.codec import decode, encode


class FileStore:
    """A file belongs to the API key that made it: for every other one it does not exist."""

    def __init__(
        self, cluster: Cluster, contents: FileContents, older: FileStore | None = None
    ) -> None:
        """`older`: the store that the service has moved away from, which is still read."""
        self._records = cluster.bucket(cluster.subjects.files_bucket)
        self._contents = contents
        self._ttl_s = cluster.config.files_ttl_s
        self._older = older

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def add(
        self,
        file_id: str,
        owner: str,
        filename: str,
        purpose: Purpose,
        content: IO[bytes],
        ttl_s: float | None = None,
    ) -> FileRecord:
        """Store it: content first, so that a record has its content. Raises RequestError."""
        now = time.time()
        try:
            num_bytes = await self._contents.put(file_id, content)
            record = FileRecord(
                id=file_id,
                owner=owner,
                filename=filename,
                purpose=purpose,
                num_bytes=num_bytes,
                created=now,
                expires=now + min(ttl_s or self._ttl_s, self._ttl_s),
            )
            await self._records.put(_key(owner, file_id), encode(record))
        except LimitReached as exc:
            raise StorageFull(
                "The store of files is full (--files-max-bytes): delete some, or wait until "
                "older ones expire."
            ) from exc
        except BrokerError as exc:
            raise ServiceUnavailable("The file could not be stored now.") from exc
        return record

    async def get(self, file_id: str, owner: str) -> FileRecord:
        """Raises NotFound or ServiceUnavailable."""
        if not is_file_id(file_id):
            raise _unknown(file_id)
        try:
            entry = await self._records.get(_key(owner, file_id))
            record = None if entry is None else decode(FileRecord, entry.value)
            if record is not None and record.expires < time.time():
                await self._delete(record)
                record = None
        except BrokerError as exc:
            raise _unavailable() from exc
        except ProtocolError:
            record = None
        if record is None:
            if self._older is not None:
                return await self._older.get(file_id, owner)
            raise _unknown(file_id)
        return record

    async def read(self, record: FileRecord, into: IO[bytes]) -> None:
        """Its content. Raises NotFound or ServiceUnavailable."""
        try:
            await self._contents.get(record.id, into)
        except NotFound:
            if self._older is None:
                raise
            await self._older.read(record, into)
        except BrokerError as exc:
            raise _unavailable() from exc

    async def all(self, owner: str) -> list[FileRecord]:
        """The files of an owner, in the order in which they were made.

        Raises ServiceUnavailable.
        """
        try:
            entries = await self._records.entries(f"{owner or ANYONE}.")
        except BrokerError as exc:
            raise _unavailable() from exc
        now = time.time()
        records = [r for r in readable(FileRecord, entries) if r.expires >= now]
        if self._older is not None:
            records += await self._older.all(owner)
        return sorted(records, key=lambda record: (record.created, record.id))

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises NotFound or ServiceUnavailable."""
        record = await self.get(file_id, owner)
        try:
            await self._delete(record)
            if self._older is not None:
                await self._older._delete(record)
        except BrokerError as exc:
            raise ServiceUnavailable("The file could not be deleted now.") from exc

    async def erase_all(self, owner: str) -> int:
        """All files of an owner, and their bytes; how many there were. Raises BrokerError."""
        entries = await self._records.entries(f"{owner or ANYONE}.")
        for entry in entries:  # the content first: its record tells of it
            await self._contents.erase(entry.key.rpartition(".")[2])
            await self._records.erase(entry.key)
        return len(entries)

    async def _delete(self, record: FileRecord) -> None:
        await self._records.delete(_key(record.owner, record.id))
        await self._contents.delete(record.id)


def _key(owner: str, file_id: str) -> str:
    return f"{owner or ANYONE}.{file_id}"


def _unknown(file_id: str) -> NotFound:
    return NotFound(
        f"No file {file_id[:64]!r} is known: it may have expired, or belong to another API key.",
        param="id",
        code="file_not_found",
    )


def _unavailable() -> ServiceUnavailable:
    return ServiceUnavailable("The files cannot be read now.")
