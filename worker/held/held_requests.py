"""The requests that a worker holds, by request id and by their runs in the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from shared.event_wait import wait_event
from worker.engine_child.engine_host import EngineHost
from worker.held.held_request import HeldRequest


class HeldRequests:
    """Invariant: a run belongs to a held request, and a request is held under its rid once."""

    def __init__(self, engine: EngineHost) -> None:
        self._engine = engine
        self._by_rid: dict[str, HeldRequest] = {}
        self._by_run: dict[int, HeldRequest] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._removed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_rid)

    def __iter__(self) -> Iterator[HeldRequest]:
        """A snapshot: dropping while iterating is safe."""
        return iter(list(self._by_rid.values()))

    @property
    def num_runs(self) -> int:
        return len(self._by_run)

    def add(self, held: HeldRequest) -> None:
        self._by_rid[held.rid] = held
        self._empty.clear()

    def get(self, rid: str) -> HeldRequest | None:
        return self._by_rid.get(rid)

    def of_run(self, run_id: int) -> HeldRequest | None:
        """None for a run that was aborted: the engine had not heard of it yet."""
        return self._by_run.get(run_id)

    def begin_run(self, held: HeldRequest) -> None:
        self._by_run[held.run_id] = held

    def end_run(self, held: HeldRequest) -> bool:
        """False when the run is over already."""
        return self._by_run.pop(held.run_id, None) is not None

    def abort(self, held: HeldRequest) -> None:
        """Stop its run, if there is one."""
        if self.end_run(held):
            self._engine.abort(held.run_id)

    def drop(self, held: HeldRequest) -> None:
        """Forget it: nothing more is written of it, its pages are free."""
        self.abort(held)
        held.drop()
        if self._by_rid.get(held.rid) is held:
            del self._by_rid[held.rid]
        if not self._by_rid:
            self._empty.set()
        self._removed.set()
        if held.trace is not None:
            held.trace.on_drop(len(held.tokens))

    async def wait_only(self, held: HeldRequest, timeout_s: float) -> bool:
        """Wait until nothing else is held; False when it took too long. For one waiter."""
        deadline = time.monotonic() + timeout_s
        while any(other is not held for other in self._by_rid.values()):
            self._removed.clear()
            if not await wait_event(self._removed, deadline - time.monotonic()):
                return False
        return True

    @property
    def empty(self) -> asyncio.Event:
        """Set while nothing is held."""
        return self._empty

    async def wait_empty(self, timeout_s: float) -> bool:
        return await wait_event(self._empty, timeout_s)
