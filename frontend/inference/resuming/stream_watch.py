"""Looks after each generation when it is time: deadlines, hope, signs of life, results."""

from __future__ import annotations

import asyncio

from frontend.inference.answers.terminator import Terminator
from frontend.models.model_directory import ModelDirectory
from frontend.streams.alarms import TICK_S
from frontend.streams.generation import Generation, Interrupt
from frontend.streams.reply_router import ReplyRouter
from shared.protocol.finish import FinishReason

NO_RESULT_AFTER_S = 15.0  # after the deadline: then even a new detokenizer should have spoken


class StreamWatch:
    """One timer for all, so that a token costs none."""

    def __init__(self, router: ReplyRouter, terminator: Terminator, models: ModelDirectory) -> None:
        self._router = router
        self._terminator = terminator
        self._models = models

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._router.in_use.wait()
            await asyncio.sleep(TICK_S)
            now = loop.time()
            for generation in self._router.to_look_after.take_due(now):
                self._router.to_look_after.set(generation, self._look_after(generation, now))
            for pool in list(self._router.pools):
                if why := self._models.hopeless(pool):
                    self._give_up(pool, why)

    def _look_after(self, generation: Generation, now: float) -> float:
        """Returns when to do so again."""
        if now >= generation.queue_timeout_at and not generation.looks_on:
            generation.queue_timeout_at = float("inf")
            self._terminator.end_unclaimed(generation, FinishReason.QUEUE_TIMEOUT)
        if not generation.is_expired and now >= generation.deadline_at:
            if generation.looks_on:
                generation.is_expired = True
            elif not generation.is_finished:
                self._terminator.expire(generation)
        elif now >= generation.deadline_at + NO_RESULT_AFTER_S:
            generation.cut(Interrupt.NO_RESULT)
        times = [generation.queue_timeout_at] if not generation.looks_on else []
        times += [generation.deadline_at, generation.deadline_at + NO_RESULT_AFTER_S]
        if generation.keepalive_s:
            last_sent_at = max(generation.last_sent_at, generation.timings.last_text_at)
            if now - last_sent_at >= generation.keepalive_s:
                generation.last_sent_at = last_sent_at = now
                generation.keepalive()
            times.append(last_sent_at + generation.keepalive_s)
        return min((at for at in times if at > now), default=float("inf"))

    def _give_up(self, pool: str, why: str) -> None:
        """Whoever waits is told. What nobody waits for is kept until a worker comes."""
        for generation in self._router.generations:
            if generation.pool != pool or generation.is_hopeless:
                continue
            is_alone = generation.is_detached or generation.looks_on
            if generation.is_watched and generation.is_stored and not is_alone:
                generation.is_hopeless = True
                self._terminator.end_unclaimed(generation, FinishReason.UNSERVED, why)
