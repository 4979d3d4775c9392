"""How the bodies of requests are read: in their turn, and not for nothing without end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from frontend.fields.request_body import RawBody
from frontend.jobs.body_line import BodyLine
from frontend.jobs.job import Caller
from frontend.tenants.refused_work import RefusedWork
from shared.errors import RequestError

_SHORT_MS = 1.0
_REFUSAL_MS = 0.3  # what each costs besides its body
_NO_FAULT = (408, 409, 429, 499)  # of what the body says


class BodyIntake:
    """Of one process, whose event loop all bodies share."""

    def __init__(self) -> None:
        self._line = BodyLine()
        self._refused = RefusedWork()

    def check(self, caller: Caller) -> None:
        """Spares the work for a body that is not read anyway. Raises RateLimited."""
        self._refused.check(caller.tenant, time.monotonic())

    @asynccontextmanager
    async def read(self, data: bytes, caller: Caller) -> AsyncIterator[dict[str, Any]]:
        """A JSON object. When it is refused, here or within, its tenant is charged for it.

        Raises InvalidRequest, RequestTooLarge, or RateLimited when too much was refused before.
        """
        self.check(caller)
        raw = RawBody(data)
        if raw.reading_ms > _SHORT_MS:
            await self._line.turn(caller.tenant.id)
            self.check(caller)
        try:
            yield raw.parse()
        except RequestError as exc:
            if 400 <= exc.status_code < 500 and exc.status_code not in _NO_FAULT:
                num_ms = _REFUSAL_MS + raw.reading_ms
                self._refused.charge(caller.tenant, num_ms, time.monotonic())
            raise
