"""Whether this worker can take requests, and how many more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from shared.event_wait import wait_event
from worker.capacity.claim_pace import ClaimPace
from worker.capacity.credits import CreditPolicy
from worker.capacity.hang_watch import HangWatch
from worker.engine_child.engine_host import EngineHost
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.runs.engine_pause import EnginePause
from worker.runs.token_log import TokenLog


class Capacity:
    """Asked for each pull and each delivery; once closed, there is none any more."""

    def __init__(
        self,
        engine: EngineHost,
        held_requests: HeldRequests,
        pause: EnginePause,
        token_log: TokenLog,
        hang_watch: HangWatch,
    ) -> None:
        self._engine = engine
        self._held_requests = held_requests
        self._pause = pause
        self._token_log = token_log
        self._hang_watch = hang_watch
        self._credits = CreditPolicy()
        self._claims = ClaimPace()
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
        return self._hang_watch.is_prompt and not self._token_log.is_stalled

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

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """A request is on its way to a claim."""
        self._claims.begin()
        try:
            yield
        finally:
            self._claims.end()

    async def wait_unreserved(self, timeout_s: float) -> bool:
        """Wait until no such request is left."""
        return await wait_event(self._unreserved, timeout_s)

    def num_credits(self) -> int:
        """Requests to ask for, beyond those that are held."""
        ready = self._engine.ready
        if ready is None or not self.can_run or not self.admits:
            return 0
        if self._pause.is_due:
            return 0
        num_credits = self._credits.num_credits(ready, self._engine.load, self._held_requests)
        return max(0, min(num_credits - self._num_reserved, self._claims.room))
