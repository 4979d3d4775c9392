"""Where HTTP requests come in: to the application of the streams that take them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.errors import RequestError

Overload = Callable[[], RequestError | None]

_MAX_IN_A_TURN = 16


class Entrance:
    """What came in before it leads elsewhere is answered where it is.

    Of POSTs that come in together a few begin in each turn of the event loop. A request needs a
    dozen turns to be stored; were thousands begun in one, those before them would wait for all.
    """

    def __init__(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload
        self._num_begun = 0  # in this turn of the loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    def lead_to(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload

    def refusal(self) -> RequestError | None:
        """With which POSTs are answered while there are too many."""
        return self._overload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._begin()
        await self._app(scope, receive, send)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._num_begun:
            loop.call_soon(self._next_turn)
        if self._num_begun < _MAX_IN_A_TURN and not self._waiting:
            self._num_begun += 1
        else:
            waiting = loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _next_turn(self) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < _MAX_IN_A_TURN:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._num_begun += 1
                waiting.set_result(None)
        if self._num_begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
