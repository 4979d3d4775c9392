"""The engine: takes requests, steps, and tells what each step made."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from shared.errors import ProcessorFault
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.token_ids import unpack_token_ids
from worker.engine.beams import BeamHandler
from worker.engine.grammar.grammar_matcher import GrammarMatcher
from worker.engine.grammar.grammar_queue import GrammarQueue
from worker.engine.loop.step_budget import StepBudget
from worker.engine.loop.step_pipeline import StepDone, StepPipeline
from worker.engine.lora.adapter_pool import AdapterPool
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.req_embeds import EmbedsRule
from worker.engine.request.req_image import Eyes
from worker.engine.request.req_window import DEAF, Ears, Sound
from worker.engine.request.stop_check import StopCheck
from worker.engine.request.token_functions import TokenFunctions
from worker.engine.schedule.scheduler import Scheduler
from worker.engine.transcribing import TranscriptionHandler
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineLoad,
    RunOutput,
    RunShare,
    StepOutput,
)

POLL_S = 0.002  # of what other threads do
SIGN_OF_LIFE_S = 1.0
NO_HIDDEN = "hidden states are told only by models that make tokens on a CPU, with tp=1"
NO_BEAMS = (
    "beam search is not possible with this model: the state of its recurrent layers is kept at few "
    "places of a text, so that each token of each beam would compute many others again"
)


class FreeMemory(Protocol):
    """The free memory of a GPU."""

    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReqParts:
    """What a request names, and the engine has for all of them."""

    adapters: AdapterPool
    eyes: Eyes
    embeds: EmbedsRule
    tells_hidden: bool  # states, to requests that ask for them
    functions: TokenFunctions  # of the operator
    ears: Ears = DEAF


class Engine:
    """Requests in, one step of all that run, one `StepOutput` out: a `CommandLoop` drives it."""

    def __init__(
        self,
        scheduler: Scheduler,
        steps: StepPipeline,
        budget: StepBudget,
        stop_check: StopCheck,
        grammar_queue: GrammarQueue,
        parts: ReqParts,
        free_memory: FreeMemory | None = None,
        release_cache: Callable[[], None] | None = None,  # its memory, not what the books say
    ) -> None:
        self._release_cache = release_cache
        self._scheduler = scheduler
        self._steps = steps  # of the same scheduler
        self._budget = budget
        self._stop_check = stop_check
        self._grammar_queue = grammar_queue
        self._free_memory = free_memory
        self._parts = parts
        self._in_grammar_queue: dict[int, Arrival] = {}  # waiting for their grammar, by run_id
        self._refused: list[RunOutput] = []  # not told yet
        self._sent_at = 0.0  # of the monotonic clock
        self._arrivals = itertools.count()
        step_ids = itertools.count(-1, -1)
        self._beams = BeamHandler(scheduler, stop_check, self._arrivals, step_ids)
        self._transcriptions = TranscriptionHandler(
            scheduler, stop_check, self._arrivals, step_ids, parts.ears.card
        )
        self._num_steps = 0
        self._is_paused = False
        self._has_news = False  # the load has changed, and nothing has told it

    def step(self) -> StepOutput | None:
        """Plans and launches one, and tells what the oldest in flight has made."""
        can_launch = self._can_step
        done = self._advance() if can_launch else self._steps.collect()
        if done is None and not self._steps.is_empty:
            return None  # one more may be launched before the first is waited for
        if done is None:
            return self.report()
        self._num_steps += 1
        self._budget.on_step(done.size, done.elapsed_s)
        if done.num_fitting is not None:
            self._budget.on_shortage(done.num_fitting)
        return self._output(done.outputs, done)

    def _advance(self) -> StepDone | None:
        budget, scheduler = self._budget, self._scheduler
        num_prefill_tokens = budget.num_prefill_tokens(
            scheduler.num_decoding_together, scheduler.num_waiting_tokens
        )
        return self._steps.advance(budget.num_tokens, num_prefill_tokens)

    def report(self) -> StepOutput:
        return self._output([])

    @property
    def is_due(self) -> bool:
        return self._can_step or not self._steps.is_empty

    @property
    def wait_s(self) -> float:
        polls = self._in_grammar_queue or self._scheduler.has_tier_work
        return POLL_S if polls else math.inf

    @property
    def has_news(self) -> bool:
        """A grammar that is compiled, or a page that is read, is progress, and looks like a hang to
        those who wait.
        """
        waits = bool(self._in_grammar_queue) or self._scheduler.awaits_pages
        owes_sign_of_life = waits and time.monotonic() - self._sent_at > SIGN_OF_LIFE_S
        return self._has_news or owes_sign_of_life

    @property
    def is_idle(self) -> bool:
        has_work = self._scheduler.has_work or bool(self._in_grammar_queue)
        return not has_work and self._steps.is_empty

    @property
    def _can_step(self) -> bool:
        scheduler = self._scheduler
        return scheduler.has_work and not self._is_paused and not scheduler.awaits_pages

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def abort(self, run_id: int) -> None:
        self._scheduler.abort(run_id)
        self._beams.abort(run_id)
        self._transcriptions.abort(run_id)
        self._grammar_queue.abandon(run_id)
        self._in_grammar_queue.pop(run_id, None)

    def set_paused(self, paused: bool) -> None:
        self._is_paused = paused

    def flush_cache(self) -> None:
        self._scheduler.flush_cache()

    def release_cache(self) -> None:
        assert self.is_idle
        assert self._release_cache is not None, "it has not said that it can"
        self._scheduler.empty_pool()
        self._release_cache()

    def load_adapter(self, adapter: str, path: Path) -> None:
        self._parts.adapters.load(adapter, path)

    def drop_adapter(self, adapter: str) -> None:
        self._parts.adapters.drop(adapter)

    def add(self, command: AddRequest) -> None:
        self._has_news = True
        parts = self._parts
        error = (
            parts.eyes.error(command) or parts.embeds.error(command) or parts.ears.error(command)
        )
        if error is None and command.options.sampling.hidden_states:
            error = None if self._parts.tells_hidden else NO_HIDDEN
        if error is not None:
            self._refuse(command.run_id, error)
            return
        try:
            functions = self._parts.functions.of(command.options.sampling.logits_processors)
        except ProcessorFault as exc:
            self._refuse(command.run_id, str(exc))
            return
        adapter_id = command.options.adapter
        arrival = Arrival(
            command,
            next(self._arrivals),
            time.monotonic(),
            self._parts.adapters.get(adapter_id),
            self._parts.eyes.images(command),
            functions,
            self._parts.embeds.of(command),
            Sound.maybe_of(command, self._parts.ears.card),
        )
        if adapter_id and arrival.adapter is None:
            self._refuse(command.run_id, self._parts.adapters.absence(adapter_id))
            return
        grammar = command.options.sampling.grammar
        if grammar is None:
            self._admit(arrival)
            return
        self._in_grammar_queue[command.run_id] = arrival
        self._grammar_queue.wait_for(command.run_id, grammar, unpack_token_ids(command.output_ids))

    def admit(self) -> None:
        """Requests whose grammar is ready go where they would have been without one; pages come and
        go.
        """
        self._scheduler.serve_tier(self._budget.prefill_token_s)
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
        beam = command.options.sampling.beam
        if beam is not None and self._scheduler.keeps_states:
            self._refuse(command.run_id, NO_BEAMS)
        elif beam is not None:
            self._beams.begin(arrival, beam)
        elif arrival.sound is not None:
            if (output := self._transcriptions.begin(arrival, arrival.sound)) is not None:
                self._refused.append(output)
        else:
            self._scheduler.add(Req(arrival, self._stop_check, matcher))

    def _output(
        self,
        outputs: list[RunOutput],
        done: StepDone | None = None,
    ) -> StepOutput:
        ended, self._refused = self._refused + self._scheduler.take_ended(), []
        self._has_news = False
        self._sent_at = time.monotonic()
        load = self._load()
        outputs = ended + outputs
        shares = [] if done is None else done.shares
        # What they wait for now is over with the next step: no load to be told.
        for handler in (self._transcriptions, self._beams):
            if handler:
                shares = [_owned(share, handler.owner(share.run_id)) for share in shares]
                outputs = handler.take(outputs)
        if done is None:
            return StepOutput(self._num_steps, outputs, load)
        num_tokens = done.size.num_tokens
        told = [each for each in done.begun if each.run_id > 0]  # not the steps of beam searches
        token_s = done.elapsed_s / num_tokens
        return StepOutput(
            self._num_steps, outputs, load, num_tokens, told, done.num_fitting, token_s, shares
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


def _owned(share: RunShare, owner: int | None) -> RunShare:
    """What a request of a run had is the run's."""
    return share if owner is None else msgspec.structs.replace(share, run_id=owner)
