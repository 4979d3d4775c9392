"""Decides who may still join a step, within its tokens and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduledReq
from worker.engine.schedule.kv_ledger import KVLedger

INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
NUM_FALLING_STEPS = 600  # from the first to the second
MORE_TOKENS = 20  # that each request makes, at least, before the next retraction
MAX_RESERVED_TOKENS = 4096


class ReserveRatio:
    """How much of the running requests' future output an admission leaves room for.

    A share of what is still allowed: it falls while all goes well, and rises at a retraction.
    """

    def __init__(self) -> None:
        self.value = INITIAL_RATIO

    def on_step(self) -> None:
        self.value = max(MIN_RATIO, self.value - (INITIAL_RATIO - MIN_RATIO) / NUM_FALLING_STEPS)

    def on_retraction(self, running: Iterable[Req]) -> None:
        """At least what those that go on have used so far of their own allowance, and some more."""
        num_used = num_allowed = 0
        for req in running:
            num_used += req.num_output_tokens + MORE_TOKENS
            num_allowed += req.sampling.max_tokens
        if num_allowed:
            self.value = max(self.value, min(1.0, num_used / num_allowed))


class PrefillAdder:
    """Fills one step: chunks of running requests first, then new ones.

    A new request must find pages for all of its tokens, beside what the running prefills still
    need and a share of the output that the running requests may still make.
    """

    def __init__(
        self, ledger: KVLedger, running: Sequence[Req], token_budget: int, reserve_ratio: float
    ) -> None:
        self._ledger = ledger
        self._running = running
        self._reserve_ratio = reserve_ratio
        self._num_reserved_pages: int | None = None  # counted when somebody wants to join
        self._sees_image = False  # a new one
        self._hears = False  # a new window
        self.token_budget = token_budget
        self.entries: list[ScheduledReq] = []

    @property
    def is_open(self) -> bool:
        """Whether there are tokens and a row for one more."""
        return self.token_budget > 0 and self._ledger.num_free_rows > 0

    def add_chunk(self, req: Req) -> None:
        """As much of its prefill as tokens and pages allow; maybe nothing."""
        start = req.num_scheduled
        end = min(req.num_tokens, start + self.token_budget, self._ledger.num_tokens_in_reach(req))
        if req.window is not None and not req.window.is_heard and start < end:
            end = start if self._hears else end  # as of images
            self._hears = True
        if req.images and start < end:
            end = self._end_before_images(req, start, end)
            end = self._end_outside_images(req, start, end)
        if end <= start:
            return
        self._ledger.extend(req, end)
        self.entries.append(ScheduledReq.up_to(req, end))
        self.token_budget -= end - start

    def _end_before_images(self, req: Req, start: int, end: int) -> int:
        """Where a chunk must end: a step sees one new image, whoever's it is.

        Each takes as long as many tokens do, and a step must not seem to hang.
        """
        for image in req.images:
            if image.end <= start or image.is_encoded:
                continue
            if image.start >= end:
                break
            if self._sees_image:
                return min(end, max(start, image.start))
            self._sees_image = True
        return end

    def _end_outside_images(self, req: Req, start: int, end: int) -> int:
        """Tokens that see each other are computed in one step, however many there are."""
        for image in req.images:
            if not image.is_mutual or not image.start < end < image.end:
                continue
            if start < image.start:
                return image.start
            return image.end if image.end <= self._ledger.num_tokens_in_reach(req) else start
        return end

    def try_admit(self, req: Req) -> bool:
        """Gives a waiting request its row and its first chunk, if it may join now."""
        assert self.is_open
        if self._num_reserved_pages is None:
            self._num_reserved_pages = self._num_pages_to_come(self._running)
        match = self._ledger.match(req)
        num_pages = -(-(req.num_tokens + 1) // self._ledger.page_size) - len(match.pages)
        num_available = self._ledger.num_available_beside(match)
        # Alone it may have everything: it has been checked that its tokens fit.
        if self._ledger.num_used_rows and num_pages + self._num_reserved_pages > num_available:
            return False
        self._ledger.attach(req, match)
        self.add_chunk(req)
        self._num_reserved_pages += self._num_pages_to_come([req])
        return True

    def _num_pages_to_come(self, reqs: Iterable[Req]) -> int:
        num_pages = 0
        for req in reqs:
            num_tokens = len(req.token_ids)
            remaining = min(req.max_num_tokens - num_tokens, MAX_RESERVED_TOKENS)
            num_short = num_tokens + int(remaining * self._reserve_ratio) - req.num_slots
            if num_short > 0:
                num_pages += -(-num_short // self._ledger.page_size)
        return num_pages
