"""Where HTTP requests come in: to the application of the streams that take them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.errors import RequestError

Overload = Callable[[], RequestError | None]


class Entrance:
    """What came in before it leads elsewhere is answered where it is."""

    def __init__(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload

    def lead_to(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload

    def refusal(self) -> RequestError | None:
        """With which POSTs are answered while there are too many."""
        return self._overload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
