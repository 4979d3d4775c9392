"""`/v1/audio`: forms with a file become jobs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from frontend.http.form_body import read_form
from frontend.http.http_request import headers_of
from frontend.jobs.body_intake import BodyIntake
from frontend.jobs.job import Caller
from frontend.limits.work_limits import AudioLimits
from frontend.routes.api_route import AUDIO_PATHS, ApiRoute, RouteAnswer
from frontend.routes.job_starts import JobStarts
from shared.errors import RequestTooLarge
from shared.protocol.reply import Surface

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# What is no text; what cannot be read stays one, and is refused by its name.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "temperature": float,
    "seed": int,
    "stream": lambda text: _BOOLEANS[text.lower()],
}
_LISTS = ("timestamp_granularities", "include")


class AudioRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, starts: JobStarts, intake: BodyIntake, limits: AudioLimits) -> None:
        self._starts = starts
        self._intake = intake
        self._limits = limits

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("POST", path, partial(self._start, surface))
            for surface, path in AUDIO_PATHS.items()
        ]

    async def _start(self, surface: Surface, request: Request, caller: Caller) -> RouteAnswer:
        if "last-event-id" in headers_of(request.scope):
            return await self._starts.of(surface)(request, caller)
        self._intake.check(caller)
        form = await read_form(request, self._check_size)
        try:
            body = await _body_of(form)
        finally:
            await form.close()
        return await self._starts.begin(surface, body, caller)

    def _check_size(self, num_bytes: int) -> None:
        """Raises RequestTooLarge."""
        if num_bytes > self._limits.max_bytes:
            raise RequestTooLarge(
                f"'file' has more than {self._limits.max_bytes} bytes (--max-audio-bytes)",
                param="file",
            )


async def _body_of(form: FormData) -> dict[str, Any]:
    """As JSON has it; the file in base64."""
    body: dict[str, Any] = {}
    for key in form:
        name = key.removesuffix("[]")
        value = form[key]
        if isinstance(value, UploadFile):
            data = await value.read()
            body[name] = await asyncio.to_thread(lambda: base64.b64encode(data).decode())  # noqa: B023
        elif name in _LISTS:
            body[name] = form.getlist(key)
        else:
            body[name] = _read(name, value)
    return body


def _read(name: str, text: str) -> Any:
    if name not in _READERS:
        return text
    try:
        return _READERS[name](text)
    except (ValueError, KeyError):
        return text
