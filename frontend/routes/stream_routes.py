"""`/v1/streams/{id}` and `/abort_request`: what is asked of an accepted request."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.request_path_service import PathService
from frontend.fields.field_ranges import RANGES
from frontend.fields.request_body import rid_of_body
from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.inference.inference import Aborted, Inference
from frontend.jobs.job import Caller
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import ApiRoute
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.surfaces.forks.fork_body import FROM_ZERO, STREAM_FIELD
from frontend.text.event_id import parse_event_id
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface


class StreamRoutes:
    """Handlers of the HTTP surface."""

    def __init__(
        self,
        inference: Inference,
        erasing: ErasingService,
        paths: PathService,
        bodies: HttpBodies,
        *,
        ping_interval_s: float,
    ) -> None:
        self._inference = inference
        self._erasing = erasing
        self._paths = paths
        self._bodies = bodies
        self._ping_interval_s = ping_interval_s

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/v1/streams", self._list),
            ApiRoute("GET", "/v1/streams/{rid}", self._resume),
            ApiRoute("DELETE", "/v1/streams/{rid}", self._erase),
            ApiRoute("GET", "/v1/streams/{rid}/path", self._paths.path),
            ApiRoute("POST", "/v1/streams/{rid}/fork", self._fork),
            ApiRoute("GET", "/v1/streams/{rid}/tokens", self._tokens),
            ApiRoute("POST", "/abort_request", self._abort),
        ]

    async def _resume(self, request: Request, caller: Caller) -> AnswerResponse:
        rid = request.path_params["rid"]
        query = request.query_params
        last_event_id = request.headers.get("last-event-id") or query.get("last_event_id")
        event_id = parse_event_id(last_event_id) if last_event_id else None
        if event_id is not None and event_id.group_id != rid:
            raise InvalidRequest(
                f"Last-Event-ID belongs to stream {event_id.group_id}", param="Last-Event-ID"
            )
        stream = _is_set(query.get("stream", "true"))
        looks_on = _is_set(query.get("watch", "false"))
        if not stream:
            event_id = None
        answer = await self._inference.resume(
            rid, event_id, caller, stream=stream, looks_on=looks_on
        )
        return AnswerResponse(answer, self._ping_interval_s)

    async def _erase(self, request: Request, caller: Caller) -> Response:
        return json_response(
            encode_json(await self._erasing.erase(request.path_params["rid"], caller))
        )

    async def _fork(self, request: Request, caller: Caller) -> AnswerResponse:
        with await self._bodies.read(request, caller) as body:
            body[STREAM_FIELD] = request.path_params["rid"]
            answer = await self._inference.start(Surface.FORK, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)

    async def _tokens(self, request: Request, caller: Caller) -> Response:
        query, rid = request.query_params, request.path_params["rid"]
        choice = FROM_ZERO.read("choice", query.get("choice", "0"))
        num_top = RANGES["top_logprobs"].read("top", query.get("top", "0"))
        tokens = await self._inference.tokens(rid, choice, caller, num_top)
        return json_response(encode_json(tokens))

    async def _list(self, request: Request, caller: Caller) -> Response:
        page = await self._inference.kept(request.query_params, caller)
        return json_response(encode_json(page))

    async def _abort(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as body:
            rid = rid_of_body(body)
            num_ended = await self._inference.abort(rid, caller)
        return json_response(encode_json(Aborted(rid=rid, num_aborted=num_ended)))


def _is_set(flag: str) -> bool:
    """Whether a parameter of the query says yes."""
    return flag.lower() not in ("false", "0")
