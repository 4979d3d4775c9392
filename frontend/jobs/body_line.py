"""The line of the bodies that take long to read: they share the event loop with all streams."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from frontend.tenants.tenant_line import TenantLine


class _Waiting(NamedTuple):
    done: asyncio.Future[None]


class BodyLine:
    """One body at a time, tenants in turn; behind each, the loop is as long for others.

    Were all read as they come, each turn of the loop would read one of every connection, and a
    stream needs a dozen turns to its first token.
    """

    def __init__(self) -> None:
        self._line: TenantLine[_Waiting] = TenantLine()
        self._is_free = True
        self._began_at = 0.0

    async def turn(self, tenant_id: str) -> None:
        """Returns when the caller may read its body; what it does before it waits is its turn."""
        loop = asyncio.get_running_loop()
        if self._is_free:
            self._is_free = False
        else:
            await self._wait(tenant_id)
        self._began_at = loop.time()
        loop.call_soon(self._rest)

    async def _wait(self, tenant_id: str) -> None:
        called = asyncio.get_running_loop().create_future()
        self._line.add(tenant_id, _Waiting(called))
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called, and left in the same moment
                self._call_next()
            raise

    def _rest(self) -> None:
        """The reader waits for something now, or has ended."""
        loop = asyncio.get_running_loop()
        loop.call_later(loop.time() - self._began_at, self._call_next)

    def _call_next(self) -> None:
        waiting = self._line.next()
        if waiting is None:
            self._is_free = True
        else:
            waiting.done.set_result(None)
