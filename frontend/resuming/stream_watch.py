"""Looks after all generations a few times a second: deadlines, signs of life, lost results."""

from __future__ import annotations

import asyncio

from frontend.generation import Generation, Interrupt
from frontend.reply_router import ReplyRouter
from frontend.terminator import Terminator

_TICK_S = 0.2
NO_RESULT_AFTER_S = 15.0  # after the deadline: then even a new detokenizer should have spoken


class StreamWatch:
    """One timer for all, so that a token costs none."""

    def __init__(self, router: ReplyRouter, terminator: Terminator) -> None:
        self._router = router
        self._terminator = terminator

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            for generation in self._router.generations:
                self._look_after(generation, now)

    def _look_after(self, generation: Generation, now: float) -> None:
        if now >= generation.queue_timeout_at:
            generation.queue_timeout_at = float("inf")
            self._terminator.end_unclaimed(generation)
        if not generation.is_expired and now >= generation.deadline_at:
            if not generation.is_finished:
                self._terminator.expire(generation)
        elif now >= generation.deadline_at + NO_RESULT_AFTER_S:
            generation.cut(Interrupt.NO_RESULT)
        last_sent_at = max(generation.last_sent_at, generation.timings.last_text_at)
        if generation.keepalive_s and now - last_sent_at >= generation.keepalive_s:
            generation.last_sent_at = now
            generation.keepalive()
