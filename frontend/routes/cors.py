"""Pages of other origins that may ask: what browsers want to be told."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from frontend.fields.unknown_fields import HEADER as UNKNOWN_FIELDS
from frontend.jobs.client_request_id import HEADER as CLIENT_REQUEST_ID

_EXPOSED_HEADERS = ", ".join(
    ["x-request-id", CLIENT_REQUEST_ID, "retry-after", UNKNOWN_FIELDS]
    + [
        f"x-ratelimit-{what}-{kind}"
        for kind in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ]
)


class Cors:
    """Adds headers for the origins that are allowed: none, some, or `*`."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origins)

    @property
    def is_on(self) -> bool:
        return bool(self._origins)

    def with_headers(self, scope: Scope, send: Send) -> Send:
        """`send` with the headers for a page that may ask."""
        origin = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"origin"), None)
        if origin is None or not ({origin, "*"} & self._origins):
            return send

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers["access-control-allow-headers"] = "*, Authorization"
                headers["access-control-allow-methods"] = "GET, POST, DELETE, OPTIONS"
                headers["access-control-max-age"] = "600"
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                headers.add_vary_header("Origin")
            await send(message)

        return send_with_cors
