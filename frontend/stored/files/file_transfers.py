"""Files in parts, for a transport of small messages: each part is asked for and confirmed."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from frontend.fields.request_body import convert
from frontend.jobs.job import Caller
from frontend.stored.files.file_record import FileExpiry
from frontend.stored.files.files import Files, check_purpose
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest, NotFound, ServiceUnavailable

MAX_OPEN = 16  # transfers; each has a temporary file
IDLE_S = 60.0  # after which a transfer is forgotten
OFFSET_PARAM = "Jetflock-Offset"


class UploadBody(msgspec.Struct, frozen=True):
    """What begins an upload."""

    purpose: str
    filename: str = ""
    expires_after: FileExpiry | None = None

    def ttl_s(self) -> float | None:
        return None if self.expires_after is None else self.expires_after.ttl_s("expires_after")


@dataclass(slots=True)
class Transfer:
    """A file on its way in or out."""

    name: str
    max_part_bytes: int
    content: IO[bytes]
    num_bytes: int
    caller: Caller
    body: UploadBody | None  # None for a download
    timer: asyncio.TimerHandle
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stored: bytes = b""  # the answer to the end of an upload, which may be asked for again


class Transfers:
    """The transfers that this frontend has open, by a name that nobody can guess.

    Every part is told with its offset, so that one that is sent again changes nothing, and a
    download goes on anywhere. When the frontend dies an upload has to begin anew.
    """

    def __init__(self, files: Files, max_part_bytes: int) -> None:
        self._files = files
        self._max_part_bytes = max_part_bytes
        self._open: dict[str, Transfer] = {}

    def lead_to(self, files: Files) -> None:
        """Where what ends from now on is stored, and what begins is read."""
        self._files = files

    async def upload(self, body: dict[str, Any], caller: Caller) -> Transfer:
        """Begin one. Raises InvalidRequest or ServiceUnavailable."""
        wanted = convert(body, UploadBody)
        check_purpose(wanted.purpose)
        wanted.ttl_s()
        content = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is forgotten
        return self._begin(content, 0, caller, wanted)

    async def download(self, file_id: str, caller: Caller) -> Transfer:
        """Begin one. Raises NotFound or ServiceUnavailable."""
        record, content = await self._files.content(file_id, caller)
        return self._begin(content, record.num_bytes, caller, None)

    async def part(self, name: str, nats_user: str, offset_text: str, data: bytes) -> bytes:
        """The answer to a message of a transfer. Raises RequestError."""
        transfer = self._open.get(name)
        if transfer is None or transfer.caller.nats_user != nats_user:
            raise NotFound(
                "No such transfer is open here: it was idle for too long, or its frontend was "
                "started anew.",
                code="transfer_not_found",
            )
        if not (offset_text.isascii() and offset_text.isdigit()):
            raise InvalidRequest(
                f"header {OFFSET_PARAM} is {offset_text[:40]!r}, must be a number of bytes",
                param=OFFSET_PARAM,
            )
        transfer.timer.cancel()
        try:
            async with transfer.lock:  # a part may be sent again while the first one is stored
                return await self._turn(transfer, int(offset_text[:15]), data)
        finally:
            transfer.timer.cancel()
            transfer.timer = self._forget_later(name)

    def close(self) -> None:
        """Forget all of them."""
        for name in list(self._open):
            self._forget(name)

    def _begin(
        self, content: IO[bytes], num_bytes: int, caller: Caller, body: UploadBody | None
    ) -> Transfer:
        if len(self._open) >= MAX_OPEN:
            content.close()
            raise ServiceUnavailable(f"{MAX_OPEN} transfers of files are open here: ask again.")
        name = secrets.token_hex(16)
        timer = self._forget_later(name)
        transfer = Transfer(name, self._max_part_bytes, content, num_bytes, caller, body, timer)
        self._open[name] = transfer
        return transfer

    async def _turn(self, transfer: Transfer, offset: int, data: bytes) -> bytes:
        """An empty part is the end of an upload."""
        if transfer.body is None:
            transfer.content.seek(offset)
            return transfer.content.read(self._max_part_bytes)
        if transfer.stored:
            return transfer.stored
        if offset > transfer.num_bytes or (not data and offset != transfer.num_bytes):
            raise InvalidRequest(
                f"header {OFFSET_PARAM} is {offset}, and {transfer.num_bytes} bytes have come",
                param=OFFSET_PARAM,
            )
        if data:
            self._files.check_size(offset + len(data))
            transfer.content.seek(offset)
            transfer.content.write(data)
            transfer.num_bytes = max(transfer.num_bytes, offset + len(data))
            return encode_json({"bytes": transfer.num_bytes})
        transfer.content.seek(0)
        stored = await self._files.add(
            transfer.content,
            transfer.num_bytes,
            transfer.body.filename,
            transfer.body.ttl_s(),
            transfer.caller,
        )
        transfer.stored = encode_json(stored)
        return transfer.stored

    def _forget_later(self, name: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(IDLE_S, self._forget, name)

    def _forget(self, name: str) -> None:
        transfer = self._open.pop(name)
        transfer.timer.cancel()
        transfer.content.close()
