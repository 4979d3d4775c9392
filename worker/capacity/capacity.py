"""Whether this worker can take requests, and how many more."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from shared.event_wait import wait_event
from worker.capacity.hang_watch import HangWatch
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_messages import EngineLoad, EngineReady
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.runs.engine_pause import EnginePause
from worker.runs.token_log import TokenLog

_CLAIMS_WINDOW_S = 1.0
_MIN_CLAIMS = 16  # to begin with; it grows as fast as claims are stored
# Output that a request is expected to need beyond what it has: admission is optimistic, since the
# engine can retract, but not so much that it must.
_EXPECTED_OUTPUT = 256
_MEAN_WEIGHT = 0.1
_FEW = 32  # requests: so many are counted each time they are asked for
_COUNTED_S = 20e-6  # beyond, a count is good for so long for each: twenty times what it took


class CreditPolicy:
    """How many more requests fit. Late binding: what does not fit now stays in the queue, where
    another worker can take it.
    """

    def __init__(self) -> None:
        self._mean_need = 0.0  # KV tokens of a request, exponentially averaged

    def note(self, held: HeldRequest) -> None:
        """A request has come: learn what one needs."""
        need = self._need(held)
        weight = _MEAN_WEIGHT if self._mean_need else 1.0
        self._mean_need += weight * (need - self._mean_need)

    def num_credits(
        self, ready: EngineReady, load: EngineLoad | None, held: Iterable[HeldRequest]
    ) -> int:
        """Requests to ask for, beyond those that are held."""
        if load is not None and load.num_free_slots <= 0:
            return 0
        active = [request for request in held if request.is_active]
        num_slots = ready.max_running - len(active)
        if num_slots <= 0:
            return 0
        if not active:
            return num_slots if self._mean_need == 0 else max(1, self._fitting(ready, 0, num_slots))
        if load is not None and load.num_waiting_tokens > 2 * ready.max_step_tokens:
            return 0
        return self._fitting(ready, sum(self._need(request) for request in active), num_slots)

    @staticmethod
    def has_slot(ready: EngineReady, held: Iterable[HeldRequest], num_reserved: int = 0) -> bool:
        """Whether one more can run at all, beside what is held and what a place is kept for."""
        return num_reserved + sum(request.is_active for request in held) < ready.max_running

    def _fitting(self, ready: EngineReady, num_committed: int, num_slots: int) -> int:
        num_free = ready.num_kv_tokens - num_committed
        return max(0, min(num_slots, int(num_free / max(1.0, self._mean_need))))

    @staticmethod
    def _need(held: HeldRequest) -> int:
        request = held.request
        num_left = request.sampling.max_tokens - len(held.tokens)
        expected = min(max(0, num_left), _EXPECTED_OUTPUT)
        return request.reply.num_prompt_tokens + len(held.tokens) + expected


class CountedCredits:
    """To count them, all requests are looked at: more seldom where they are many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num = 0
        self._good_until = float("-inf")

    def note_taken(self) -> None:
        """A request more is held."""
        self._num -= 1

    def num(self, num_held: int, count: Callable[[], int]) -> int:
        """As counted last, less the requests taken since."""
        now = self._clock()
        if now >= self._good_until or self._num <= 0:  # whoever has none is not woken for more
            self._num = count()
            self._good_until = now + (num_held * _COUNTED_S if num_held > _FEW else 0.0)
        return self._num


class ClaimPace:
    """How many requests may be on their way to a claim: no more than are claimed in a second.

    Whoever pulls more than it can claim lets them wait for itself in place of for any worker, and
    on a starved machine until the server gives them to others, who do the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled: deque[float] = deque()
        self._num_open = 0

    def begin(self) -> None:
        """A request is to be claimed."""
        self._num_open += 1

    def end(self) -> None:
        """It is ours, or somebody else's."""
        self._num_open -= 1
        self._settled.append(self._clock())

    @property
    def room(self) -> int:
        """How many more may begin."""
        since = self._clock() - _CLAIMS_WINDOW_S
        while self._settled and self._settled[0] < since:
            self._settled.popleft()
        return max(0, max(_MIN_CLAIMS, 2 * len(self._settled)) - self._num_open)


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
        self._counted = CountedCredits()
        self._claims = ClaimPace()
        self._num_reserved = 0
        self._unreserved = asyncio.Event()
        self._unreserved.set()
        self.is_closed = False
        self.is_paused = False  # by an operator's order: what is here goes on, nothing is added
        self.is_quarantined = False  # one request has the worker for itself

    def close(self) -> None:
        """A drain has begun."""
        self.is_closed = True

    def note(self, held: HeldRequest) -> None:
        """A request has been taken: learn what one needs."""
        self._credits.note(held)
        self._counted.note_taken()

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
        if self._num_reserved + len(self._held_requests) < ready.max_running:
            return True  # all of them may need the engine
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
        if self._pause.is_on:
            return 0
        num_credits = self._counted.num(
            len(self._held_requests),
            lambda: self._credits.num_credits(ready, self._engine.load, self._held_requests),
        )
        return max(0, min(num_credits - self._num_reserved, self._claims.room))
