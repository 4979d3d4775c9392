"""What probes and scrapers ask: health, version and metrics of this frontend."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.readiness import Readiness
from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.text.event_writer import encode_json
from frontend.text.wire_struct import WireStruct
from shared.machine.installation import own_version
from shared.status.health import LIVE_PATH, READY_PATH, HealthAnswer, live_answer, ready_answer


class Version(WireStruct, frozen=True, kw_only=True):
    """The version of this server."""

    version: str


class StatusRoutes:
    """Handlers of the HTTP surface. All but the metrics are open: they tell nothing of clients."""

    def __init__(self, readiness: Readiness, registry: CollectorRegistry) -> None:
        self._readiness = readiness
        self._registry = registry
        self._version = own_version()

    def routes(self) -> Sequence[ApiRoute]:
        return [
            *(
                ApiRoute("GET", path, self._live, is_open=True)
                for path in ("/health", LIVE_PATH, "/live")
            ),
            *(
                ApiRoute("GET", path, self._ready, is_open=True)
                for path in (READY_PATH, "/ping", "/ready")
            ),
            ApiRoute("GET", "/version", self._get_version, is_open=True),
            ApiRoute("GET", "/metrics", self._get_metrics),
        ]

    async def _live(self, request: Request, caller: Caller) -> Response:
        return _health_response(live_answer(self._readiness.checkup()))

    async def _ready(self, request: Request, caller: Caller) -> Response:
        return _health_response(ready_answer(self._readiness.checkup()))

    async def _get_version(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(Version(version=self._version)))

    async def _get_metrics(self, request: Request, caller: Caller) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": content_type})


def _health_response(answer: HealthAnswer) -> Response:
    return json_response(answer.body, answer.status_code)
