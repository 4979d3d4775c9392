"""The engine: takes requests, steps, and tells what each step made."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from shared.errors import ConfigError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import VisionCard
from shared.protocol.token_ids import unpack_token_ids
from worker.engine.beams.beam_handler import BeamHandler
from worker.engine.grammar.grammar_matcher import GrammarMatcher
from worker.engine.grammar.grammar_queue import GrammarQueue
from worker.engine.images.image_check import image_error
from worker.engine.loop.step_budget import StepBudget
from worker.engine.loop.step_pipeline import StepPipeline
from worker.engine.lora.adapter_pool import AdapterPool
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.req_image import ReqImage
from worker.engine.request.step_result import BatchRunner
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.scheduler import Scheduler
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_messages import (
    AbortRequest,
    AdapterLoaded,
    AddRequest,
    DropAdapter,
    EngineCommand,
    EngineLoad,
    EngineReady,
    FlushCache,
    LoadAdapter,
    RunBegin,
    RunOutput,
    SetPaused,
    StepOutput,
)

IDLE_WAIT_S = 5.0
GRAMMAR_POLL_S = 0.002
SIGN_OF_LIFE_S = 1.0


class FreeMemory(Protocol):
    """Of a GPU."""

    def num_bytes(self) -> int: ...


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
        grammar_queue: GrammarQueue,
        adapters: AdapterPool,
        overlap_depth: int = 0,
        vision: VisionCard | None = None,
        free_memory: FreeMemory | None = None,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._steps = StepPipeline(scheduler, runner, overlap_depth)
        self._budget = budget
        self._limits = limits
        self._stop_check = stop_check
        self._grammar_queue = grammar_queue
        self._vision = vision
        self._free_memory = free_memory
        self._adapters = adapters
        self._in_grammar_queue: dict[int, Arrival] = {}  # waiting for their grammar, by run_id
        self._refused: list[RunOutput] = []  # not told yet
        self._told_at = 0.0  # of the monotonic clock
        self._arrivals = itertools.count()
        self._beams = BeamHandler(scheduler, stop_check, self._arrivals)
        self._num_steps = 0
        self._is_paused = False
        self._has_news = False  # the load has changed, and no step has told it

    def run(self, *, until_idle: bool = False) -> None:
        """Until the channel is closed; with `until_idle` until nothing is left to do."""
        self._channel.send(self._limits)
        while True:
            for command in self._channel.poll(self._wait_s(until_idle)):
                self._handle(command)
            self._take_seated()
            if self._can_step or not self._steps.is_empty:
                self.step()
            elif self._has_news or self._owes_sign_of_life:
                self._send([])
            elif until_idle and not self._has_work:
                return

    def step(self) -> None:
        """Plans and launches one, and tells what the oldest in flight has made."""
        can_launch = self._can_step
        num_tokens = self._budget.num_tokens
        done = self._steps.advance(num_tokens) if can_launch else self._steps.collect()
        if done is None and not self._steps.is_empty:
            return  # one more may be launched before the first is waited for
        if done is None:
            self._send([])
        else:
            self._num_steps += 1
            self._budget.on_step(done.num_tokens, done.elapsed_s)
            if done.num_fitting is not None:
                self._budget.on_shortage(done.num_fitting)
            self._send(done.outputs, done.num_tokens, done.begun, done.num_fitting)
        if not self._scheduler.has_work and self._steps.is_empty:
            self._scheduler.check_integrity()

    @property
    def _can_step(self) -> bool:
        return self._scheduler.has_work and not self._is_paused

    def _wait_s(self, until_idle: bool) -> float:
        if self._can_step or self._has_news or not self._steps.is_empty:
            return 0.0
        if self._in_grammar_queue:
            return GRAMMAR_POLL_S
        return 0.0 if until_idle and not self._has_work else IDLE_WAIT_S

    @property
    def _has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_grammar_queue)

    @property
    def _owes_sign_of_life(self) -> bool:
        """A grammar that is compiled is progress, and looks like a hang to those who wait."""
        return bool(self._in_grammar_queue) and time.monotonic() - self._told_at > SIGN_OF_LIFE_S

    def _handle(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                self._add(command)
            case AbortRequest(run_id=run_id):
                self._scheduler.abort(run_id)
                self._beams.abort(run_id)
                self._grammar_queue.abandon(run_id)
                self._in_grammar_queue.pop(run_id, None)
                self._has_news = True
            case SetPaused(paused=paused):
                self._is_paused = paused
            case FlushCache():
                self._scheduler.flush_cache()
                self._has_news = True
            case LoadAdapter():
                self._load_adapter(command)
            case DropAdapter(adapter=adapter):
                self._adapters.drop(adapter)
                self._has_news = True

    def _load_adapter(self, command: LoadAdapter) -> None:
        error = ""
        try:
            self._adapters.load(command.adapter, Path(command.path))
        except ConfigError as exc:
            error = str(exc)
        self._channel.send(AdapterLoaded(command.adapter, error))
        self._has_news = True

    def _add(self, command: AddRequest) -> None:
        adapter_id = command.options.adapter
        arrival = Arrival(
            command,
            next(self._arrivals),
            time.monotonic(),
            self._adapters.get(adapter_id),
            [ReqImage.of(image) for image in command.images],
        )
        self._has_news = True
        if adapter_id and arrival.adapter is None:
            self._refuse(command.run_id, self._adapters.absence(adapter_id))
            return
        grammar = command.options.sampling.grammar
        if grammar is None:
            self._admit(arrival)
            return
        self._in_grammar_queue[command.run_id] = arrival
        self._grammar_queue.wait_for(command.run_id, grammar, unpack_token_ids(command.output_ids))

    def _take_seated(self) -> None:
        """Requests whose grammar is ready go where they would have been without one."""
        for seated in self._grammar_queue.take_seated() if self._in_grammar_queue else ():
            arrival = self._in_grammar_queue.pop(seated.run_id)
            self._has_news = True
            if seated.matcher is None:
                self._refuse(seated.run_id, seated.error)
            else:
                self._admit(arrival, seated.matcher)

    def _refuse(self, run_id: int, message: str | None) -> None:
        self._refused.append(RunOutput(run_id, [], Finish(FinishReason.ERROR, message=message)))

    def _admit(self, arrival: Arrival, matcher: GrammarMatcher | None = None) -> None:
        command = arrival.command
        error = image_error(command.images, arrival.num_prompt_tokens, self._vision)
        beam = command.options.sampling.beam
        if error is not None:
            self._refuse(command.run_id, error)
        elif beam is not None:
            self._beams.begin(arrival, beam)
        else:
            self._scheduler.add(Req(arrival, self._stop_check, matcher))

    def _send(
        self,
        outputs: list[RunOutput],
        num_tokens: int = 0,
        begun: Sequence[RunBegin] = (),
        num_fitting: int | None = None,
    ) -> None:
        ended, self._refused = self._refused + self._scheduler.take_ended(), []
        self._has_news = False
        self._told_at = time.monotonic()
        load = self._load()
        outputs = ended + outputs
        if self._beams:  # what they wait for now is over with the next step: no load to be told
            outputs = self._beams.take(outputs)
        told = [each for each in begun if each.run_id > 0]  # not the steps of beam searches
        self._channel.send(
            StepOutput(self._num_steps, outputs, load, num_tokens, told, num_fitting)
        )

    def _load(self) -> EngineLoad:
        load = self._scheduler.load()
        if self._free_memory is not None:
            load = msgspec.structs.replace(load, gpu_free_bytes=self._free_memory.num_bytes())
        if not self._in_grammar_queue:
            return load
        num_tokens = sum(arrival.num_tokens for arrival in self._in_grammar_queue.values())
        return msgspec.structs.replace(
            load,
            num_waiting=load.num_waiting + len(self._in_grammar_queue),
            num_waiting_tokens=load.num_waiting_tokens + num_tokens,
        )
