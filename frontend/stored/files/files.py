"""Files of an API key: stored, listed, read and deleted, whatever transport asks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import IO

from frontend.jobs.job import Caller
from frontend.limits.stream_limits import StreamLimits
from frontend.stored.files.file_answer import File, FileDeleted, FileList, file_object
from frontend.stored.files.file_record import UPLOADED, FileRecord, new_file_id
from frontend.stored.files.file_store import FileStore
from frontend.stored.list_page import page_of
from shared.errors import InvalidRequest, RequestTooLarge

_MAX_NAME_LEN = 255


class Files:
    """Whichever frontend is asked: all of it is in the store."""

    def __init__(self, store: FileStore, streams: StreamLimits, max_file_bytes: int) -> None:
        self._store = store
        self._streams = streams
        self.max_file_bytes = max_file_bytes

    async def add(
        self, content: IO[bytes], num_bytes: int, filename: str, ttl_s: float | None, caller: Caller
    ) -> File:
        """Stores the content from its present position. Raises RequestError."""
        if not num_bytes:
            raise InvalidRequest("'file' is empty", param="file", code="empty_file")
        self.check_size(num_bytes)
        self._streams.check_file()
        name = (filename or "upload")[-_MAX_NAME_LEN:]
        record = await self._store.add(new_file_id(), caller.owner, name, UPLOADED, content, ttl_s)
        return file_object(record)

    async def all(self, query: Mapping[str, str], caller: Caller) -> FileList:
        """A page of them. Raises RequestError."""
        purpose = query.get("purpose")
        records = await self._store.all(caller.owner)
        objects = [file_object(r) for r in records if purpose in (None, r.purpose)]
        page, ends = page_of(objects, query, max_limit=10_000, default=10_000)
        return FileList(object="list", data=page, **ends._asdict())

    async def get(self, file_id: str, caller: Caller) -> File:
        """Raises NotFound or ServiceUnavailable."""
        return file_object(await self._store.get(file_id, caller.owner))

    async def content(self, file_id: str, caller: Caller) -> tuple[FileRecord, IO[bytes]]:
        """A temporary file, to be closed. Raises NotFound or ServiceUnavailable."""
        record = await self._store.get(file_id, caller.owner)
        content = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who asks
        try:
            await self._store.read(record, content)
            content.seek(0)
        except BaseException:
            content.close()
            raise
        return record, content

    async def delete(self, file_id: str, caller: Caller) -> FileDeleted:
        """Raises NotFound or ServiceUnavailable."""
        await self._store.delete(file_id, caller.owner)
        return FileDeleted(id=file_id, object="file", deleted=True)

    def check_size(self, num_bytes: int) -> None:
        """Raises RequestTooLarge."""
        if num_bytes > self.max_file_bytes:
            raise RequestTooLarge(
                f"The file is larger than {self.max_file_bytes} bytes (--max-file-bytes)."
            )


def check_purpose(purpose: object) -> None:
    """Checks the purpose of a file that comes from outside. Raises InvalidRequest."""
    if purpose != UPLOADED:
        raise InvalidRequest(
            f"'purpose' is {str(purpose)[:40]!r}, must be {UPLOADED!r}", param="purpose"
        )
