"""Files in and out over NATS, part by part; begun again when their frontend is gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jetflock.client.endpoints import Endpoints
from jetflock.client.link import ConnectionChanged, NoFrontend
from jetflock.errors import ClientError, NotFound, ServerError

OFFSET_HEADER = "Jetflock-Offset"
PART_TIMEOUT_S = 30.0
END_TIMEOUT_S = 300.0  # then the whole file is stored
_ATTEMPTS = 5
_PAUSE_S = 0.5


class _Again(Exception):
    """The transfer is gone, or its frontend does not answer."""


async def upload(endpoints: Endpoints, path: Path, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the file object. Raises ApiError or ClientError."""
    content = await asyncio.to_thread(path.read_bytes)
    for _ in range(_ATTEMPTS):
        transfer = await endpoints.ask("files.upload", {"filename": path.name, **body})
        subject, num = transfer["subject"], transfer["max_part_bytes"]
        try:
            for offset in range(0, len(content), num):
                await _part(endpoints, subject, offset, content[offset : offset + num])
            stored = await _part(endpoints, subject, len(content), b"", END_TIMEOUT_S)
        except _Again:
            await asyncio.sleep(_PAUSE_S)
        else:
            file: dict[str, Any] = json.loads(stored)
            return file
    raise ClientError(f"{path.name} could not be sent: its frontends went away")


async def download(endpoints: Endpoints, file_id: str, path: Path) -> None:
    """Raises ApiError or ClientError."""
    offset = 0
    with path.open("wb") as file:
        for _ in range(_ATTEMPTS):
            transfer = await endpoints.ask("files.download", {"id": file_id})
            try:
                while part := await _part(endpoints, transfer["subject"], offset, b""):
                    await asyncio.to_thread(file.write, part)
                    offset += len(part)
            except _Again:
                await asyncio.sleep(_PAUSE_S)
            else:
                return
    raise ClientError(f"{file_id} could not be fetched: its frontends went away")


async def _part(
    endpoints: Endpoints, subject: str, offset: int, data: bytes, timeout_s: float = PART_TIMEOUT_S
) -> bytes:
    """Raises _Again or ApiError."""
    with endpoints.link.inbox() as inbox:
        try:
            headers = {OFFSET_HEADER: str(offset)}
            message = await endpoints.link.ask(subject, data, headers, inbox, timeout_s)
        except (TimeoutError, ConnectionChanged, NoFrontend, NotFound, ServerError) as exc:
            raise _Again from exc
        return message.data
