"""`/v1/files`: upload, list, look at, fetch and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from frontend.http.error_response import json_response
from frontend.http.form_body import read_form
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.stored.files.file_record import MADE, checked_ttl_s
from frontend.stored.files.files import Files, check_purpose
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest, UnsupportedParameter

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
        form = await read_form(request, self._files.check_size)
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


def _ttl_s(form: FormData) -> float | None:
    """Reads the lifetime of `expires_after[anchor]` and `expires_after[seconds]`; None when they
    are not there.
    """
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
