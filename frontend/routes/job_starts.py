"""What routes of all APIs do whose bodies become jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from frontend.http.http_request import HttpBodies, headers_of
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import Handler
from frontend.surfaces.invocations import ReadInvocation
from frontend.text.event_id import parse_event_id
from shared.protocol.reply import Surface


class JobStarts:
    """Starts what a body asks for, or goes on with it where the request has a `Last-Event-ID`."""

    def __init__(self, inference: Inference, bodies: HttpBodies, *, ping_interval_s: float) -> None:
        self._inference = inference
        self._bodies = bodies
        self._ping_interval_s = ping_interval_s

    def of(self, surface: Surface) -> Handler:
        """The handler of one API."""

        async def read(body: dict[str, Any]) -> tuple[Surface, dict[str, Any]]:
            return surface, body

        return partial(self.start, read)

    async def start(self, read: ReadInvocation, request: Request, caller: Caller) -> AnswerResponse:
        """`read` says of which API the body is. Raises RequestError."""
        last_event_id = headers_of(request.scope).get("last-event-id")
        if last_event_id:
            await self._bodies.skip(request, caller)
            event_id = parse_event_id(last_event_id)
            answer = await self._inference.resume(event_id.group_id, event_id, caller, stream=True)
        else:
            with await self._bodies.read(request, caller) as raw:
                surface, body = await read(raw)
                return await self.begin(surface, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)

    async def begin(self, surface: Surface, body: dict[str, Any], caller: Caller) -> AnswerResponse:
        """Raises RequestError."""
        answer = await self._inference.start(surface, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)
