"""`GET /v1/loads`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.loads import loads_view
from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory
from frontend.routes.api_route import ApiRoute
from frontend.text.event_writer import encode_json
from shared.errors import BrokerError, ServiceUnavailable, UnsupportedParameter
from shared.machine.installation import own_version
from shared.snapshot.cluster_reader import ClusterReader


class LoadRoutes:
    """Handlers of the HTTP surface, and the answer over NATS."""

    def __init__(self, reader: ClusterReader, models: ModelDirectory) -> None:
        self._reader = reader
        self._models = models
        self._version = own_version()

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/v1/loads", self.loads),
        ]

    async def loads(self, request: Request, caller: Caller) -> Response:
        query = request.query_params
        _check(query)
        return json_response(await self.answer(query.get("model")))

    async def answer(self, model: str | None) -> bytes:
        """The load of one model, or of all. Raises ModelNotFound or ServiceUnavailable."""
        if model is not None:
            model = (await self._models.find(model)).card.name  # adapters run where it runs
        try:
            snapshot = await self._reader.snapshot()
        except BrokerError as exc:
            raise ServiceUnavailable("The loads cannot be read now.") from exc
        shown = snapshot if model is None else snapshot.of_model(model)
        return encode_json(loads_view(shown, self._version))


def _check(query: Mapping[str, str]) -> None:
    """Raises UnsupportedParameter for what would make it another answer."""
    if query.get("format", "json") != "json":
        raise UnsupportedParameter("format", f"is {query['format'][:40]!r}: only json is supported")
    if "dp_rank" in query:
        raise UnsupportedParameter("dp_rank")
