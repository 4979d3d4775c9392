"""`GET /v1/streams/{id}/path`: which workers an answer came from, for whoever asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.answers.event_writer import encode_json
from frontend.cluster.request_paths import Hop, path_of
from frontend.error_response import json_response
from frontend.job import Caller
from frontend.resuming.stream_finder import StreamFinder
from shared.errors import BrokerError, ServiceUnavailable
from shared.ownership import OwnershipLog


class PathDesk:
    """Reads the ownership logs of one request, on any frontend, while it runs and afterwards."""

    def __init__(self, finder: StreamFinder, ownership: OwnershipLog) -> None:
        self._finder = finder
        self._ownership = ownership

    async def path(self, request: Request, caller: Caller) -> Response:
        """Raises NotFound, also of another's request, or ServiceUnavailable."""
        rid = request.path_params["rid"]
        choices = await self._finder.find(rid, caller.owner)
        try:
            logs = await asyncio.gather(*(self._ownership.read(each.rid) for each in choices))
        except BrokerError as exc:
            raise ServiceUnavailable(f"The ownership log cannot be read now: {exc}") from exc
        paths = [hops_view(path_of(log)) for log in logs]
        return json_response(encode_json({"rid": rid, "paths": paths}))


def hops_view(hops: Sequence[Hop]) -> list[dict[str, Any]]:
    """Hops as JSON, oldest first."""
    return [
        {"worker": hop.worker, "epoch": hop.epoch, "at": round(hop.at, 3)}
        | ({} if hop.left is None else {"left": hop.left.value})
        for hop in hops
    ]
