"""Steps on their way: planned and launched by the one end, collected by the other."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from worker.engine.request.schedule_batch import ScheduleBatch, StepSize
from worker.engine.request.step_result import BatchRunner, StepHandle
from worker.engine.schedule.scheduler import Scheduler
from worker.engine_link.engine_messages import RunBegin, RunOutput, RunShare


class StepDone(NamedTuple):
    """A step that was collected and booked."""

    outputs: list[RunOutput]
    size: StepSize
    elapsed_s: float  # since it was planned, or since the step before it was done
    begun: list[RunBegin]  # since the step before it was done
    num_fitting: int | None  # tokens that memory had room for at once; None: for all
    shares: list[RunShare]


class _StepInFlight(NamedTuple):
    batch: ScheduleBatch
    handle: StepHandle
    planned_at_s: float  # when its plan, and guesses for it, were begun


class StepPipeline:
    """Launches the next step while up to `depth` others are in flight.

    With depth 0 each step is collected before the next one is planned. With depth 1 the runner
    computes a step while the host books the one before it and plans the one behind it; deeper, the
    stages of a model compute a step each. Where a
    choice depends on the token before it (grammars, penalties), the step is computed meanwhile all
    the same: only its choice comes after the booking.
    """

    def __init__(self, scheduler: Scheduler, runner: BatchRunner, depth: int = 0) -> None:
        """`depth` is 0 or 1, or less than the sets of the scheduler: a request awaits one token at
        most.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._depth = depth
        self._in_flight: deque[_StepInFlight] = deque()
        self._owes_choice = False  # the newest of these, until the one before it is booked
        self._done_at_s = 0.0
        self._begun: list[RunBegin] = []

    @property
    def is_empty(self) -> bool:
        return not self._in_flight

    def advance(self, token_budget: int, prefill_budget: int | None = None) -> StepDone | None:
        """Launches a step if one can be planned now, and collects the oldest if it must.

        It has at most `token_budget` tokens, and `prefill_budget` of them are prompts'.

        None when nothing was collected: there was nothing, or there is room for one more.
        """
        planned_at_s = time.monotonic()
        batch = self._scheduler.next_batch(token_budget, prefill_budget)
        if batch is not None:
            self._note_begun(time.monotonic())
            handle = self._runner.launch(batch)
            self._in_flight.append(_StepInFlight(batch, handle, planned_at_s))
            self._owes_choice = batch.chooses_late
            if len(self._in_flight) <= self._depth:
                return None
        return self.collect()

    def collect(self) -> StepDone | None:
        """Waits for the oldest step in flight, if there is one."""
        if not self._in_flight:
            return None
        batch, handle, planned_at_s = self._in_flight.popleft()
        result = handle.collect()
        begun_at_s = max(planned_at_s, self._done_at_s)
        self._done_at_s = time.monotonic()
        outputs = self._scheduler.process(batch, result)
        if self._owes_choice:
            self._in_flight[-1].handle.choose()
            self._owes_choice = False
        begun, self._begun = self._begun, []
        elapsed_s = self._done_at_s - begun_at_s
        shares = [
            RunShare(entry.req.run_id, entry.num_tokens, len(entry.draft_ids))
            for entry in batch.others
        ]
        return StepDone(outputs, batch.size, elapsed_s, begun, result.num_fitting, shares)

    def _note_begun(self, now_s: float) -> None:
        for req in self._scheduler.take_begun():
            self._begun.append(
                RunBegin(req.run_id, now_s - req.arrived_at_s, req.num_cached_tokens or 0)
            )
