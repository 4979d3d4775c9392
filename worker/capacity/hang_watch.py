"""Notices an engine that hangs: it owes a step, or an answer, and gives none."""

from __future__ import annotations

import asyncio
import time

from shared.event_wait import beat_s
from shared.telemetry.log import get_logger
from worker.engine_child.engine_host import EngineHost
from worker.held.held_requests import HeldRequests

# A step has `max_step_s`: the engine gives it fewer tokens when it took longer (step_budget.py).
# One with a single token cannot be made smaller, so that on a slow machine its time counts instead.
# Twenty times that is out of reach of a context that grows or of busy neighbours.
_STEPS = 20
_TICK_S = 0.25
_IDLE_TICK_S = 1.0  # while nothing is owed
_LATE_S = 0.5  # a look that comes so late shows that this process did not run either

log = get_logger(__name__)


class HangWatch:
    """The age of the last step, and whether it is more than a healthy engine needs.

    Only time in which this process ran counts: whoever stopped it, or the machine, may have stopped
    the engine with it.
    """

    def __init__(
        self,
        engine: EngineHost,
        held_requests: HeldRequests,
        timeout_s: float | None,
        max_step_s: float,
    ) -> None:
        self._engine = engine
        self._held_requests = held_requests
        self._timeout_s = timeout_s
        self._max_step_s = max_step_s

    @property
    def step_age_s(self) -> float:
        """Seconds without a step while there are runs, or without an answer; else 0."""
        return self._engine.owed_s(has_runs=self._held_requests.num_runs > 0)

    @property
    def limit_s(self) -> float:
        """An engine that is silent for longer hangs."""
        if self._timeout_s is not None:
            return self._timeout_s
        ready = self._engine.ready
        return _STEPS * max(self._max_step_s, 0.0 if ready is None else ready.one_token_step_s)

    @property
    def is_prompt(self) -> bool:
        """Whether it is worth giving it more work."""
        return self.step_age_s <= self.limit_s / 2

    @property
    def is_hung(self) -> bool:
        return self.step_age_s > self.limit_s

    async def run(self) -> None:
        """Returns when the engine hangs."""
        while not self.is_hung:
            tick_s = beat_s(min(_TICK_S if self.step_age_s else _IDLE_TICK_S, self.limit_s / 8))
            slept_at = time.monotonic()
            await asyncio.sleep(tick_s)
            late_s = time.monotonic() - slept_at - tick_s
            if late_s > _LATE_S:
                self._engine.excuse(late_s)
        log.error(
            "engine_hangs",
            step_age_s=round(self.step_age_s, 2),
            num_runs=self._held_requests.num_runs,
        )
