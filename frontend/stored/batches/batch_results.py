"""What became of the lines of a batch, one message each, until its files are written."""

from __future__ import annotations

import io
import secrets
from collections.abc import AsyncIterator

import msgspec

from frontend.stored.files.file_contents import FileContents
from shared.cluster import Cluster
from shared.errors import CasConflict, MalformedMessage, NotFound, ProtocolError
from shared.protocol.codec import decode, encode
from shared.telemetry.log import get_logger

_INLINE_BYTES = 64 * 1024  # larger lines go to the object store

log = get_logger(__name__)


class LineResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the output file, or of the error file."""

    line_idx: int
    is_error: bool
    text: bytes = b""  # JSON without the line end
    object_name: str = ""  # of the text, when it is large


class BatchResults:
    """The first result of a line stays: it is written by compare-and-set."""

    def __init__(self, cluster: Cluster, contents: FileContents) -> None:
        self._js = cluster.js
        self._subjects = cluster.subjects
        self._contents = contents

    async def put(self, batch_id: str, result: LineResult) -> None:
        """Stored when it returns. Raises LimitReached or BrokerError."""
        name = ""
        if len(result.text) > _INLINE_BYTES:
            name = _object_name(batch_id, result.line_idx)
            await self._contents.put(name, io.BytesIO(result.text))
            result = msgspec.structs.replace(result, text=b"", object_name=name)
        subject = self._subjects.batch_line(batch_id, result.line_idx)
        try:
            await self._js.publish(subject, encode(result), expected_last=0)
        except CasConflict:
            log.debug("line_was_done", batch=batch_id, line=result.line_idx)
            if name:
                await self._contents.delete(name)

    async def done(self, batch_id: str) -> dict[int, bool]:
        """Lines that are over, and whether they failed. Raises BrokerError."""
        return {result.line_idx: result.is_error async for result in self.all(batch_id)}

    async def all(self, batch_id: str) -> AsyncIterator[LineResult]:
        """All results in the order in which they ended. Raises BrokerError."""
        subject = self._subjects.batch_lines(batch_id)
        async for message in self._js.proven_scan(self._subjects.batch_stream, subject):
            try:
                yield decode(LineResult, message.data)
            except ProtocolError as exc:
                log.error("line_result_unreadable", subject=message.subject, error=str(exc))

    async def text(self, result: LineResult) -> bytes:
        """Raises BrokerError, or MalformedMessage when what it points to is gone."""
        if not result.object_name:
            return result.text
        content = io.BytesIO()
        try:
            await self._contents.get(result.object_name, content)
        except NotFound as exc:
            raise MalformedMessage(f"the object {result.object_name} is gone") from exc
        return content.getvalue()

    async def clear(self, batch_id: str) -> None:
        """Raises BrokerError."""
        async for result in self.all(batch_id):
            if result.object_name:
                await self._contents.delete(result.object_name)
        await self._js.purge(self._subjects.batch_stream, self._subjects.batch_lines(batch_id))

    async def erase(self, batch_id: str) -> None:
        """Clears them as `clear` does, and their bytes are overwritten. Raises BrokerError."""
        async for result in self.all(batch_id):
            if result.object_name:
                await self._contents.erase(result.object_name)
        await self._js.erase(self._subjects.batch_stream, self._subjects.batch_lines(batch_id))


def _object_name(batch_id: str, line_idx: int) -> str:
    """The name of this attempt alone: another one must not write over what a stored result points
    to.
    """
    return f"{batch_id}.{line_idx}.{secrets.token_hex(8)}"
