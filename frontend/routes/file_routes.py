"""`/v1/files`: upload, list, look at, fetch and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.stored.files.file_record import MADE, checked_ttl_s
from frontend.stored.files.files import Files, check_purpose
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest, RequestCancelled, RequestTimeout, UnsupportedParameter

_UPLOAD_TIMEOUT_S = 600.0
_FORM_BYTES = 64 * 1024  # of an upload, beside the file
_PIECE_BYTES = 256 * 1024


class FileRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("POST", "/v1/files", self.upload),
            ApiRoute("GET", "/v1/files", self.list_files),
            ApiRoute("GET", "/v1/files/{file_id}", self.retrieve),
            ApiRoute("DELETE", "/v1/files/{file_id}", self.delete),
            ApiRoute("GET", "/v1/files/{file_id}/content", self.content),
        ]

    async def upload(self, request: Request, caller: Caller) -> Response:
        form = await self._form(request)
        try:
            check_purpose(form.get("purpose"))
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidRequest("'file' is required", param="file", code="missing_field")
            stored = await self._files.add(
                file.file, file.size or 0, file.filename or "", _ttl_s(form), caller
            )
        finally:
            await form.close()
        return json_response(encode_json(stored))

    async def list_files(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(await self._files.all(request.query_params, caller)))

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        file = await self._files.get(request.path_params["file_id"], caller)
        return json_response(encode_json(file))

    async def content(self, request: Request, caller: Caller) -> Response:
        record, content = await self._files.content(request.path_params["file_id"], caller)
        media_type = "application/jsonl" if record.purpose == MADE else "application/octet-stream"
        headers = {"content-length": str(record.num_bytes)}
        return StreamingResponse(_pieces(content), headers=headers, media_type=media_type)

    async def delete(self, request: Request, caller: Caller) -> Response:
        deleted = await self._files.delete(request.path_params["file_id"], caller)
        return json_response(encode_json(deleted))

    async def _form(self, request: Request) -> FormData:
        """Raises RequestError. What is large goes to a temporary file while it comes in."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise InvalidRequest(
                f"header content-type is {kind[:80]!r}, must be multipart/form-data",
                param="content-type",
            )
        length = request.headers.get("content-length", "")
        if length.isdigit():
            self._files.check_size(int(length) - _FORM_BYTES)
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
            self._files.check_size(num_bytes - _FORM_BYTES)
            yield piece


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


async def _pieces(content: IO[bytes]) -> AsyncIterator[bytes]:
    with content:
        while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
            yield piece
