"""Bodies of HTTP requests: bounded, and read as those of all transports are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from frontend.http.http_request import read_body
from frontend.jobs.body_intake import BodyIntake
from frontend.jobs.job import Caller


class HttpBodies:
    """JSON objects of up to `max_bytes`."""

    def __init__(self, intake: BodyIntake, max_bytes: int) -> None:
        self._intake = intake
        self._max_bytes = max_bytes

    @asynccontextmanager
    async def read(
        self, request: Request, caller: Caller, max_bytes: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The tenant is charged for what is refused within. Raises RequestError."""
        self._intake.check(caller)
        data = await read_body(request, self._max_bytes if max_bytes is None else max_bytes)
        async with self._intake.read(data, caller) as body:
            yield body

    async def skip(self, request: Request, caller: Caller) -> None:
        """Take it as it comes, whatever it is. Raises RequestError."""
        self._intake.check(caller)
        await read_body(request, self._max_bytes)
