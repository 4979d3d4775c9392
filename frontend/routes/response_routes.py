"""`/v1/responses/{id}`: look at a kept response, stream it again, cancel and delete it; and
`/v1/responses/input_tokens`: how much one would read.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import ApiRoute
from frontend.stored.kept_responses import Responses, query_flag, query_number
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.responses.response_answer import InputTokens
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest


class ResponseRoutes:
    """Handlers of the HTTP surface."""

    def __init__(
        self,
        responses: Responses,
        inference: Inference,
        requests: ResponseRequests,
        bodies: HttpBodies,
        *,
        ping_interval_s: float,
    ) -> None:
        self._responses = responses
        self._inference = inference
        self._requests = requests
        self._bodies = bodies
        self._ping_interval_s = ping_interval_s

    def routes(self) -> Sequence[ApiRoute]:
        path = "/v1/responses/{response_id}"
        return [
            ApiRoute("POST", "/v1/responses/input_tokens", self._count_tokens),
            ApiRoute("GET", path, self._get),
            ApiRoute("DELETE", path, self._delete),
            ApiRoute("POST", f"{path}/cancel", self._cancel),
            ApiRoute("GET", f"{path}/input_items", self._list_input_items),
        ]

    async def _count_tokens(self, request: Request, caller: Caller) -> Response:
        self._inference.admit_call(caller)
        with await self._bodies.read(request, caller) as body:
            count = await self._requests.count(body, caller)
        tokens = InputTokens(object="response.input_tokens", input_tokens=count)
        return json_response(encode_json(tokens), headers=caller.unknown.headers())

    async def _get(self, request: Request, caller: Caller) -> Response | AnswerResponse:
        response_id, query = request.path_params["response_id"], request.query_params
        starting_after = query_number(query, "starting_after", 0, 1 << 53)
        if query_flag(query, "stream"):
            number = -1 if starting_after is None else starting_after
            answer = await self._responses.stream(response_id, number, caller)
            return AnswerResponse(answer, self._ping_interval_s)
        if starting_after is not None:
            raise InvalidRequest("'starting_after' is of a stream", param="starting_after")
        return json_response(encode_json(await self._responses.get(response_id, caller)))

    async def _delete(self, request: Request, caller: Caller) -> Response:
        deleted = await self._responses.delete(request.path_params["response_id"], caller)
        return json_response(encode_json(deleted))

    async def _cancel(self, request: Request, caller: Caller) -> Response:
        response = await self._responses.cancel(request.path_params["response_id"], caller)
        return json_response(encode_json(response))

    async def _list_input_items(self, request: Request, caller: Caller) -> Response:
        items = await self._responses.input_items(
            request.path_params["response_id"], request.query_params, caller
        )
        return json_response(encode_json(items))
