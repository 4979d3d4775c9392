"""The thread in which a client's event loop runs, whatever its caller does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from jetflock.errors import ClientError

T = TypeVar("T")


class Running(Generic[T]):
    """A coroutine in the loop. Its outcome is known when all of it, cleaning up too, is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """It may be called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        assert self._task is not None, "it was begun before"
        self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(ClientError("the client was shut down"))
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class LoopThread:
    """A daemon: it ends when it is closed.

    `exits` is what then is done in it first; add to it from within the loop alone.
    """

    def __init__(self) -> None:
        self.exits = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._lock = threading.Lock()  # nothing is begun behind the close
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="jetflock-client", daemon=True)
        self._thread.start()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Raises ClientError when closed."""
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise ClientError("the client was shut down")
            return Running(self._loop, coroutine)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for its result. Who is interrupted meanwhile cancels it, and waits for its end."""
        running = self.spawn(coroutine)
        try:
            return running.outcome.result()
        except BaseException:
            if not running.outcome.done():
                running.cancel()
                concurrent.futures.wait([running.outcome])
            raise

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same from any event loop, which is not blocked."""
        running = self.spawn(coroutine)
        try:
            return await until(running.outcome)
        except asyncio.CancelledError:
            running.cancel()
            with contextlib.suppress(Exception):
                await until(running.outcome)
            raise

    def close(self) -> None:
        """Whatever runs is cancelled. From within the thread it only begins."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._stopping.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait_for_the_end())

    async def _wait_for_the_end(self) -> None:
        async with self.exits:
            await self._stopping.wait()


async def until(future: Future[T], timeout_s: float | None = None) -> T:
    """Its result, in any event loop; who gives up leaves the future as it is."""
    news: Future[None] = Future()

    def on_done(_: Future[T]) -> None:
        if news.set_running_or_notify_cancel():
            news.set_result(None)

    future.add_done_callback(on_done)
    async with asyncio.timeout(timeout_s):
        await asyncio.wrap_future(news)
    return future.result()
