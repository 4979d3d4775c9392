"""A few threads that tenants share: whoever has much to do in them waits for itself alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from frontend.tenants.tenant_line import TenantLine

T = TypeVar("T")


class _Turn(NamedTuple):
    """A piece of work that waits for a thread."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]
    is_long: bool


class FairThreads:
    """Takes a piece of work of each tenant in turn.

    What nobody waits for any more is not begun. What has begun cannot be stopped: so a piece is
    short, and who has more to do asks again. Where a piece must be long, it says so, and leaves a
    thread to the short ones.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._num_free = num_threads
        self._num_free_for_long = max(1, num_threads - 1)
        self._long: TenantLine[_Turn] = TenantLine()
        self._short: TenantLine[_Turn] = TenantLine()

    def close(self) -> None:
        """Begin nothing more."""
        self._long.clear()
        self._short.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, tenant: str, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Do it in a thread, when it is the tenant's turn."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        line = self._long if is_long else self._short
        line.add(tenant, _Turn(work, done, is_long))
        self._fill()
        return await done

    def _fill(self) -> None:
        while self._num_free and (turn := self._next()) is not None:
            self._num_free -= 1
            self._num_free_for_long -= turn.is_long
            running = asyncio.get_running_loop().run_in_executor(self._pool, turn.work)
            running.add_done_callback(functools.partial(self._end, turn))

    def _next(self) -> _Turn | None:
        turn = self._long.next() if self._num_free_for_long else None
        return turn or self._short.next()

    def _end(self, turn: _Turn, running: asyncio.Future[Any]) -> None:
        self._num_free += 1
        self._num_free_for_long += turn.is_long
        if not turn.done.done():
            if running.cancelled():
                turn.done.cancel()
            elif (error := running.exception()) is not None:
                turn.done.set_exception(error)
            else:
                turn.done.set_result(running.result())
        elif not running.cancelled():
            running.exception()  # seen: nobody waits for it
        self._fill()
