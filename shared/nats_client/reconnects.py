"""Who is told that a connection was lost and is back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

ReconnectCallback: TypeAlias = Callable[[], Awaitable[None]]


class Reconnects:
    """Those of one connection. It is there before the parts that are to be told."""

    def __init__(self) -> None:
        self._callbacks: list[ReconnectCallback] = []

    def follow(self, callback: ReconnectCallback) -> None:
        """Call it each time from now on."""
        self._callbacks.append(callback)

    async def tell(self) -> None:
        """The connection is back."""
        for callback in self._callbacks:
            await callback()
