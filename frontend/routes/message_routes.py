"""The HTTP routes of Anthropic's API."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.routes.job_starts import JobStarts
from frontend.surfaces.anthropic.message_answer import MessageTokens, message_error_body
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.text.event_writer import encode_json
from shared.protocol.reply import Surface


class MessageRoutes:
    """Handlers of the HTTP surface."""

    def __init__(
        self,
        starts: JobStarts,
        inference: Inference,
        messages: MessageRequests,
        bodies: HttpBodies,
    ) -> None:
        self._starts = starts
        self._inference = inference
        self._messages = messages
        self._bodies = bodies

    def routes(self) -> Sequence[ApiRoute]:
        start = self._starts.of(Surface.MESSAGES)
        return [
            ApiRoute("POST", "/v1/messages", start, message_error_body),
            ApiRoute("POST", "/v1/messages/count_tokens", self._count_tokens, message_error_body),
        ]

    async def _count_tokens(self, request: Request, caller: Caller) -> Response:
        self._inference.admit_call(caller)
        with await self._bodies.read(request, caller) as body:
            tokens = MessageTokens(input_tokens=await self._messages.count(body, caller))
        return json_response(encode_json(tokens), headers=caller.unknown.headers())
