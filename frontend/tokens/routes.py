"""`/tokenize`, `/detokenize` and `/v1/tokenizer_info`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from frontend.error_response import json_response
from frontend.http_request import read_body
from frontend.job import Caller
from frontend.requests.request_body import parse_object
from frontend.tokens.tokenizing import Tokenizing


class TokenRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, tokenizing: Tokenizing, max_body_bytes: int) -> None:
        self._tokenizing = tokenizing
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, request: Request, caller: Caller) -> Response:
        body = parse_object(await read_body(request, self._max_body_bytes))
        return json_response(await self._tokenizing.tokenize(body))

    async def detokenize(self, request: Request, caller: Caller) -> Response:
        body = parse_object(await read_body(request, self._max_body_bytes))
        return json_response(await self._tokenizing.detokenize(body))

    async def info(self, request: Request, caller: Caller) -> Response:
        return json_response(await self._tokenizing.info(request.query_params.get("model")))
