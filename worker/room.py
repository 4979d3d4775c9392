"""Whether this worker can take requests, and how many more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from shared.event_wait import wait_event
from worker.credits import CreditPolicy
from worker.engine_host import EngineHost
from worker.hang_watch import HangWatch
from worker.held_request import HeldRequest
from worker.held_requests import HeldRequests
from worker.keeper import Keeper
from worker.token_log import TokenLog


class Room:
    """Asked for each pull and each delivery; once closed, there is none any more."""

    def __init__(
        self,
        engine: EngineHost,
        held_requests: HeldRequests,
        token_log: TokenLog,
        keeper: Keeper,
        hang_watch: HangWatch,
    ) -> None:
        self._engine = engine
        self._held_requests = held_requests
        self._token_log = token_log
        self._keeper = keeper
        self._hang_watch = hang_watch
        self._credits = CreditPolicy()
        self._num_reserved = 0
        self._unreserved = asyncio.Event()
        self._unreserved.set()
        self.is_closed = False
        self.is_paused = False  # an operator's wish: what is here goes on, nothing is added
        self.is_quarantined = False  # one request has the worker for itself

    def close(self) -> None:
        """A drain has begun."""
        self.is_closed = True

    def note(self, held: HeldRequest) -> None:
        """A request has been taken: learn what one needs."""
        self._credits.note(held)

    @property
    def can_run(self) -> bool:
        """What comes to an engine that may hang would only wait for the next worker."""
        if self._engine.ready is None or self.is_closed:
            return False
        return self._hang_watch.is_prompt and self._keeper.is_logging

    @property
    def admits(self) -> bool:
        """Whether a request may be added to those that are here."""
        return not self.is_paused and not self.is_quarantined

    @property
    def has_slot(self) -> bool:
        ready = self._engine.ready
        if ready is None or not self.admits:
            return False
        return self._credits.has_slot(ready, self._held_requests, self._num_reserved)

    @property
    def num_active(self) -> int:
        """Requests that need the engine, or will unless another worker takes them."""
        return self._num_reserved + sum(held.is_active for held in self._held_requests)

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens that a further request would have before it."""
        return sum(held.num_prefill_tokens for held in self._held_requests)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """A place is kept for a request whose fate is not known yet."""
        self._num_reserved += 1
        self._unreserved.clear()
        try:
            yield
        finally:
            self._num_reserved -= 1
            if not self._num_reserved:
                self._unreserved.set()

    async def wait_unreserved(self, timeout_s: float) -> bool:
        """Wait until no such request is left."""
        return await wait_event(self._unreserved, timeout_s)

    def num_credits(self) -> int:
        """Requests to ask for, beyond those that are held."""
        ready = self._engine.ready
        if ready is None or not self.can_run or not self.admits:
            return 0
        if self._token_log.is_overfull:
            return 0
        num_credits = self._credits.num_credits(ready, self._engine.load, self._held_requests)
        return max(0, num_credits - self._num_reserved)
