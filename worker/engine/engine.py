"""The engine: takes requests, steps, and tells what each step made."""

from __future__ import annotations

import time

from shared.token_ids import unpack_token_ids
from worker.engine.req import Req
from worker.engine.scheduler import Scheduler
from worker.engine.step_budget import StepBudget
from worker.engine.step_result import BatchRunner
from worker.engine.stop_check import StopCheck
from worker.engine_channel import EngineChannel
from worker.engine_messages import (
    AbortRequest,
    AddRequest,
    EngineCommand,
    EngineReady,
    FlushCache,
    RunOutput,
    SetPaused,
    StepOutput,
)

IDLE_WAIT_S = 5.0


class Engine:
    """One thread: commands in, one step of all running requests, one `StepOutput` out."""

    def __init__(
        self,
        channel: EngineChannel,
        scheduler: Scheduler,
        runner: BatchRunner,
        budget: StepBudget,
        limits: EngineReady,
        stop_check: StopCheck,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._runner = runner
        self._budget = budget
        self._limits = limits
        self._stop_check = stop_check
        self._num_arrivals = 0
        self._num_steps = 0
        self._is_paused = False
        self._has_news = False  # the load has changed, and no step has told it

    def run(self, *, until_idle: bool = False) -> None:
        """Until the channel is closed; with `until_idle` until nothing is left to do."""
        self._channel.send(self._limits)
        while True:
            for command in self._channel.poll(self._wait_s(until_idle)):
                self._handle(command)
            if self._can_step:
                self.step()
            elif self._has_news:
                self._send([])
            elif until_idle and not self._scheduler.has_work:
                return

    def step(self) -> None:
        begin = time.monotonic()
        batch = self._scheduler.next_batch(self._budget.num_tokens)
        outputs: list[RunOutput] = []
        if batch is not None:
            result = self._runner.launch(batch).collect()
            outputs = self._scheduler.process(batch, result)
            self._num_steps += 1
            self._budget.on_step(batch.num_tokens, time.monotonic() - begin)
        self._send(outputs)
        if not self._scheduler.has_work:
            self._scheduler.check_integrity()

    @property
    def _can_step(self) -> bool:
        return self._scheduler.has_work and not self._is_paused

    def _wait_s(self, until_idle: bool) -> float:
        if self._can_step or self._has_news:
            return 0.0
        return 0.0 if until_idle and not self._scheduler.has_work else IDLE_WAIT_S

    def _handle(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                self._add(command)
            case AbortRequest(run_id=run_id):
                self._scheduler.abort(run_id)
                self._has_news = True
            case SetPaused(paused=paused):
                self._is_paused = paused
            case FlushCache():
                self._scheduler.flush_cache()
                self._has_news = True

    def _add(self, command: AddRequest) -> None:
        req = Req(
            command.run_id,
            unpack_token_ids(command.prompt_ids),
            unpack_token_ids(command.output_ids),
            command.sampling,
            command.priority,
            self._num_arrivals,
            self._stop_check,
            command.namespace,
            time.monotonic(),
        )
        self._num_arrivals += 1
        self._scheduler.add(req)
        self._has_news = True

    def _send(self, outputs: list[RunOutput]) -> None:
        outputs = self._scheduler.take_ended() + outputs
        self._has_news = False
        self._channel.send(StepOutput(self._num_steps, outputs, self._scheduler.load()))
