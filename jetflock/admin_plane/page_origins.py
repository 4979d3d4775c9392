"""The pages that may give orders: browsers tell where a page came from, and obey our answer."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from shared.errors import AuthenticationFailed
from shared.status.http_origin import checked_origin

_FLAG = "--admin-page-origin"
_ALLOWED = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "Authorization, Content-Type",
    "access-control-max-age": "600",
}


class PageOrigins:
    """Origins as browsers write them, compared as a whole: no patterns, no `*`, no `null`."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(checked_origin(origin, _FLAG) for origin in origins)

    def check(self, request: Request) -> None:
        """Programs send no origin. Raises AuthenticationFailed for a page that is not listed."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise AuthenticationFailed(
                f"The admin plane is not for the page of {origin[:100]!r}; "
                f"{_FLAG} lists those that may give orders."
            )

    def is_preflight(self, request: Request) -> bool:
        """Whether a browser asks on behalf of a listed page what it may send."""
        return (
            request.method == "OPTIONS"
            and "access-control-request-method" in request.headers
            and request.headers.get("origin") in self._origins
        )

    def preflight_answer(self, request: Request) -> Response:
        """It tells nothing but that orders are taken: a preflight cannot bring the key."""
        origin = request.headers["origin"]
        headers = {**_ALLOWED, "access-control-allow-origin": origin, "vary": "Origin"}
        return Response(status_code=204, headers=headers)

    def readable(self, request: Request, send: Send) -> Send:
        """A `send` whose answer a listed page may read, errors too."""
        origin = request.headers.get("origin")
        if origin not in self._origins:
            return send

        async def send_readable(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers.add_vary_header("Origin")
            await send(message)

        return send_readable


NO_PAGES = PageOrigins()
