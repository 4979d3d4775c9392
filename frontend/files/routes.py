"""`/v1/files`: upload, list, look at, fetch and delete."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from frontend.answers.event_writer import encode_json
from frontend.error_response import json_response
from frontend.files.record import MADE, SHORTEST_TTL_S, UPLOADED, file_object, new_file_id
from frontend.files.store import FileStore
from frontend.job import Caller
from frontend.page import page_of
from shared.errors import (
    InvalidRequest,
    RequestCancelled,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedParameter,
)

_UPLOAD_TIMEOUT_S = 600.0
_FORM_BYTES = 64 * 1024  # of an upload, beside the file
_PIECE_BYTES = 256 * 1024
_MAX_NAME_LEN = 255


class FileRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, store: FileStore, max_file_bytes: int) -> None:
        self._store = store
        self._max_file_bytes = max_file_bytes

    async def upload(self, request: Request, caller: Caller) -> Response:
        form = await self._form(request)
        try:
            purpose = form.get("purpose")
            if purpose != UPLOADED:
                raise InvalidRequest(
                    f"'purpose' is {str(purpose)[:40]!r}, must be {UPLOADED!r}", param="purpose"
                )
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidRequest("'file' is required", param="file", code="missing_field")
            if not file.size:
                raise InvalidRequest("'file' is empty", param="file", code="empty_file")
            if file.size > self._max_file_bytes:
                raise self._too_large()
            record = await self._store.add(
                new_file_id(),
                caller.owner,
                (file.filename or "upload")[-_MAX_NAME_LEN:],
                UPLOADED,
                file.file,
                _ttl_s(form),
            )
        finally:
            await form.close()
        return json_response(encode_json(file_object(record)))

    async def list_files(self, request: Request, caller: Caller) -> Response:
        purpose = request.query_params.get("purpose")
        records = await self._store.all(caller.owner)
        objects = [file_object(r) for r in records if purpose in (None, r.purpose)]
        page = page_of(objects, request.query_params, max_limit=10_000, default=10_000)
        return json_response(encode_json(page))

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        record = await self._store.get(request.path_params["file_id"], caller.owner)
        return json_response(encode_json(file_object(record)))

    async def content(self, request: Request, caller: Caller) -> Response:
        record = await self._store.get(request.path_params["file_id"], caller.owner)
        content = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is sent
        try:
            await self._store.read(record, content)
            content.seek(0)
        except BaseException:
            content.close()
            raise
        media_type = "application/jsonl" if record.purpose == MADE else "application/octet-stream"
        headers = {"content-length": str(record.num_bytes)}
        return StreamingResponse(_pieces(content), headers=headers, media_type=media_type)

    async def delete(self, request: Request, caller: Caller) -> Response:
        file_id = request.path_params["file_id"]
        await self._store.delete(file_id, caller.owner)
        return json_response(encode_json({"id": file_id, "object": "file", "deleted": True}))

    async def _form(self, request: Request) -> FormData:
        """Raises RequestError. What is large goes to a temporary file while it comes in."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise InvalidRequest(
                f"header content-type is {kind[:80]!r}, must be multipart/form-data",
                param="content-type",
            )
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_file_bytes + _FORM_BYTES:
            raise self._too_large()
        parser = MultiPartParser(
            request.headers,
            self._bounded(request),
            max_files=1,
            max_fields=16,
            max_part_size=_FORM_BYTES,
        )
        try:
            async with asyncio.timeout(_UPLOAD_TIMEOUT_S):
                return await parser.parse()
        except (MultiPartException, KeyError, UnicodeDecodeError) as exc:
            raise InvalidRequest(f"The form cannot be read: {exc}", code="invalid_form") from exc
        except ClientDisconnect as exc:
            raise RequestCancelled("The client is gone.") from exc
        except TimeoutError as exc:
            raise RequestTimeout(f"The upload did not end within {_UPLOAD_TIMEOUT_S:g} s.") from exc

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        num_bytes = 0
        async for piece in request.stream():
            num_bytes += len(piece)
            if num_bytes > self._max_file_bytes + _FORM_BYTES:
                raise self._too_large()
            yield piece

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"The file is larger than {self._max_file_bytes} bytes (--max-file-bytes)."
        )


def _ttl_s(form: FormData) -> float | None:
    """Of `expires_after[anchor]` and `expires_after[seconds]`; None when they are not there."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise UnsupportedParameter(
            "expires_after[anchor]", f"is {str(anchor)[:40]!r}, must be 'created_at'"
        )
    return checked_ttl_s(seconds, "expires_after[seconds]")


def checked_ttl_s(value: object, param: str) -> float:
    """Seconds that a file is kept. Raises InvalidRequest."""
    text = str(value)
    if not (text.isascii() and text.isdigit()) or int(text[:12]) < SHORTEST_TTL_S:
        raise InvalidRequest(
            f"'{param}' is {text[:40]!r}, must be {SHORTEST_TTL_S} or more", param=param
        )
    return float(text)


async def _pieces(content: IO[bytes]) -> AsyncIterator[bytes]:
    with content:
        while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
            yield piece
