"""What routes of all APIs do whose bodies become jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from frontend.fields.request_body import parse_object
from frontend.http.http_request import read_body
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import Handler
from frontend.surfaces.invocations import ReadInvocation
from frontend.text.event_id import parse_event_id
from shared.protocol.reply import Surface


class JobStarts:
    """Starts what a body asks for, or goes on with it where the request has a `Last-Event-ID`."""

    def __init__(
        self, inference: Inference, *, max_body_bytes: int, ping_interval_s: float
    ) -> None:
        self._inference = inference
        self._max_body_bytes = max_body_bytes
        self._ping_interval_s = ping_interval_s

    def of(self, surface: Surface) -> Handler:
        """The handler of one API."""

        async def read(body: dict[str, Any]) -> tuple[Surface, dict[str, Any]]:
            return surface, body

        return partial(self.start, read)

    async def start(self, read: ReadInvocation, request: Request, caller: Caller) -> AnswerResponse:
        """`read` says of which API the body is. Raises RequestError."""
        raw = await read_body(request, self._max_body_bytes)
        last_event_id = request.headers.get("last-event-id")
        if last_event_id:
            event_id = parse_event_id(last_event_id)
            answer = await self._inference.resume(event_id.group_id, event_id, caller, stream=True)
        else:
            surface, body = await read(parse_object(raw))
            answer = await self._inference.start(surface, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)
