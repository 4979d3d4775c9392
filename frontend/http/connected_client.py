"""The client at the other end of a connection, and who is told when it goes."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

_KEY = "jetflock.client"  # of a scope
WHOLE_BODY = "jetflock.whole_body"  # in the scope of a request that has come to its end
PIECE_WRITER = "jetflock.piece_writer"  # in a scope, a short way past `send`


class ConnectedClient:
    """Tells listeners once that it is gone, also those that come afterwards."""

    __slots__ = ("_is_gone", "_listeners")

    def __init__(self) -> None:
        self._is_gone = False
        self._listeners: list[Callable[[], object]] = []

    @classmethod
    def of(cls, scope: Scope) -> ConnectedClient:
        """The client of a request, whose connection has put it into its scope."""
        client: ConnectedClient = scope[_KEY]
        return client

    def enter(self, scope: Scope) -> None:
        """One of its requests begins."""
        scope[_KEY] = self

    def on_gone(self, listener: Callable[[], object]) -> None:
        self._listeners.append(listener)
        if self._is_gone:
            listener()

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.remove(listener)

    def go(self) -> None:
        """It will not be answered any more, or its connection is closed."""
        if self._is_gone:
            return
        self._is_gone = True
        for listener in list(self._listeners):
            listener()
