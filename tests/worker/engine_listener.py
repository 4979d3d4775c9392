"""Hears an engine, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.worker.engine_fakes import finishes_of
from worker.engine_link.engine_messages import EngineEvent

_PATIENCE_S = 90.0  # a busy machine's, with several engines


class Listener:
    """Collects what an engine tells, and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self.returncodes: list[int] = []
        self._news = asyncio.Event()

    def on_event(self, event: EngineEvent) -> None:
        assert not self.returncodes, "an event after the exit"
        self.events.append(event)
        self._news.set()

    def on_exit(self, returncode: int) -> None:
        self.returncodes.append(returncode)
        self._news.set()

    async def until_finished(self, *run_ids: int) -> None:
        await self._until(lambda: set(run_ids) <= finishes_of(self.events).keys())

    async def until_event(self, event_type: type[EngineEvent]) -> None:
        await self._until(lambda: any(isinstance(event, event_type) for event in self.events))

    async def until_exit(self) -> None:
        await self._until(lambda: bool(self.returncodes))

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():
                await self._news.wait()
                self._news.clear()
