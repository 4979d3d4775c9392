"""The event loop of one simulated process: asyncio's rules inside it, the world's clock outside."""

from __future__ import annotations

import asyncio
import functools
import itertools
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.simulation.world import World

_task_numbers = itertools.count(1)


class Callback(msgspec.Struct, eq=False):
    """What `call_soon` and `call_at` give back."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    when_s: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are walked in an order that does not depend on addresses in memory."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_task_numbers)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class ProcessLoop(asyncio.AbstractEventLoop):
    """Callbacks run in the order in which they became ready, as asyncio promises.

    A stopped process runs nothing, but its timers expire and its messages arrive; a dead one is
    cut off between two awaits, and no `finally` of it runs.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._runnable = world.runnable
        self.name = name
        self.phase_s = zlib.crc32(name.encode()) / 2**32  # of what happens each second
        self._ready: deque[Callback] = deque()
        self._is_listed = False  # among the world's runnable ones
        self.is_stopped = False
        self.is_dead = False
        # Without a call of Python's: a schedule makes a thousand of them.
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # What asyncio needs

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Callback:  # type: ignore[override]
        entry = Callback(callback, args)
        if not self.is_dead:
            self._make_ready(entry)
        return entry

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Callback:
        world = self._world
        timer = Callback(callback, args, world.now + delay)
        world.at(timer.when_s, self._expire, timer)
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Callback:
        timer = Callback(callback, args, when)
        self._world.at(when, self._expire, timer)
        return timer

    def time(self) -> float:
        return self._world.now

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Any = None
    ) -> asyncio.Task[Any]:
        return NumberedTask(coro, loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Threads take no time, and are done by the next turn."""
        future = self.create_future()

        def finish() -> None:
            if not future.cancelled():
                future.set_result(func(*args))

        self.call_soon(finish)
        return future

    get_debug = bool  # False; asked for each future and each task

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._world.is_over:
            self._world.note(self.name, f"asyncio: {context.get('message')}")

    # What the world does with it

    def _make_ready(self, entry: Callback) -> None:
        self._ready.append(entry)
        if not self._is_listed and not self.is_stopped:
            self._is_listed = True
            self._runnable.append(self)

    def _expire(self, timer: Callback) -> None:
        if not timer.is_cancelled and not self.is_dead:
            self._make_ready(timer)

    def run_turn(self) -> None:
        """Run what is ready by now; what becomes ready meanwhile waits for the next turn."""
        self._is_listed = False
        ready = self._ready
        if not ready or self.is_dead or self.is_stopped:
            return
        if self._world.running is not self:
            self._world.running = self
            events._set_running_loop(self)  # the world resets it
        for _ in range(len(ready)):
            entry = ready.popleft()
            if not entry.is_cancelled:
                entry.function(*entry.args)
                if self.is_dead or self.is_stopped:
                    break
        if ready and not self.is_stopped:
            self._is_listed = True
            self._runnable.append(self)

    def stop_process(self) -> None:
        """As SIGSTOP does."""
        self.is_stopped = True

    def wake_process(self) -> None:
        """As SIGCONT does."""
        self.is_stopped = False
        if self._ready and not self._is_listed and not self.is_dead:
            self._is_listed = True
            self._runnable.append(self)

    def kill_process(self) -> None:
        self.is_dead = True
        self._ready.clear()
