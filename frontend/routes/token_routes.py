"""`/tokenize`, `/detokenize`, `/apply-template`, `/v1/tokenizer_info` and `/props`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.inference.tokenizing import Tokenizing
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute


class TokenRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, tokenizing: Tokenizing, bodies: HttpBodies) -> None:
        self._tokenizing = tokenizing
        self._bodies = bodies

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("POST", "/tokenize", self.tokenize),
            ApiRoute("POST", "/detokenize", self.detokenize),
            ApiRoute("POST", "/apply-template", self.apply_template),
            ApiRoute("GET", "/v1/tokenizer_info", self.info),
            ApiRoute("GET", "/tokenizer_info", self.info),
            ApiRoute("GET", "/props", self.props),
        ]

    async def tokenize(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as body:
            answer = await self._tokenizing.tokenize(body, caller)
        return json_response(answer, headers=caller.unknown.headers())

    async def detokenize(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as body:
            answer = await self._tokenizing.detokenize(body, caller)
        return json_response(answer, headers=caller.unknown.headers())

    async def apply_template(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as body:
            answer = await self._tokenizing.apply_template(body, caller)
        return json_response(answer, headers=caller.unknown.headers())

    async def info(self, request: Request, caller: Caller) -> Response:
        return json_response(await self._tokenizing.info(request.query_params.get("model")))

    async def props(self, request: Request, caller: Caller) -> Response:
        return json_response(await self._tokenizing.props(request.query_params.get("model")))
