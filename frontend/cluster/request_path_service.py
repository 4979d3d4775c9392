"""`GET /v1/streams/{id}/path`: which workers an answer came from, for whoever asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.cluster_answer import HopView, RequestPath
from frontend.cluster.request_paths import Hop, path_of
from frontend.http.error_response import json_response
from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.jobs.job import Caller
from frontend.text.event_writer import encode_json
from shared.errors import BrokerError, NotFound, ServiceUnavailable
from shared.token_log.ownership import OwnershipLog


class PathService:
    """Reads the ownership logs of one request, on any frontend, while it runs and afterwards."""

    def __init__(
        self, finder: StreamFinder, ownership: OwnershipLog, older: PathService | None = None
    ) -> None:
        """`older`: of the log that the service has moved away from."""
        self._finder = finder
        self._ownership = ownership
        self._older = older

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def path(self, request: Request, caller: Caller) -> Response:
        """Raises NotFound, also of another's request, or ServiceUnavailable."""
        rid = request.path_params["rid"]
        try:
            choices = await self._finder.known(rid, caller.owner)
        except NotFound:
            if self._older is None:
                raise
            return await self._older.path(request, caller)
        try:
            logs = await asyncio.gather(*(self._ownership.read(each.rid) for each in choices))
        except BrokerError as exc:
            raise ServiceUnavailable(f"The ownership log cannot be read now: {exc}") from exc
        paths = [hops_view(path_of(log)) for log in logs]
        return json_response(encode_json(RequestPath(rid=rid, paths=paths)))


def hops_view(hops: Sequence[Hop]) -> list[HopView]:
    """Hops as clients read them, oldest first."""
    return [
        HopView(worker=hop.worker, epoch=hop.epoch, at=round(hop.at, 3), left=hop.left or UNSET)
        for hop in hops
    ]
