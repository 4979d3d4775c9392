"""Beam search: several likely outputs of one prompt, grown side by side."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from shared.protocol.finish import Beam, Finish, FinishReason
from shared.protocol.logprobs import num_top_of, unpack_logprobs
from shared.protocol.sampling import BeamParams, EarlyStopping, SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.scheduler import Scheduler
from worker.engine_link.engine_messages import AddRequest, RunOutput


class Candidate(NamedTuple):
    """An output so far."""

    token_ids: tuple[int, ...]
    logprob: float  # the sum of its tokens'


class Found(NamedTuple):
    """An output that is complete."""

    candidate: Candidate
    score: float
    is_stopped: bool  # by an end token; else by its length


class BeamSearch:
    """As transformers' `generate` with `num_beams`, `length_penalty` and `early_stopping`.

    Of all continuations by one token the `num_considered` likeliest are looked at. Of the first
    `width` of these, those that end are found outputs; of the others the first `width` go on. Kept
    are the `width` best found, by score.
    """

    def __init__(self, params: BeamParams, max_tokens: int, end_ids: Collection[int]) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._length = 0
        self.running: list[Candidate] = [Candidate((), 0.0)]  # the likeliest first
        self.found: list[Found] = []  # the best first
        self.is_over = False

    @property
    def num_considered(self) -> int:
        """How many are considered: enough go on without an end token, even if each beam has all of
        them on top.

        As many continuations of each beam are needed.
        """
        return max(2, 1 + len(self._end_ids)) * self._params.width

    def advance(self, continuations: Sequence[Sequence[tuple[int, float]]]) -> None:
        """One token further: the likeliest next tokens of each running beam, and their logprobs."""
        width = self._params.width
        grown = [
            Candidate((*beam.token_ids, token_id), beam.logprob + logprob)
            for beam, nexts in zip(self.running, continuations, strict=True)
            for token_id, logprob in nexts
        ]
        grown.sort(key=lambda candidate: -candidate.logprob)  # stable: of equals the better beam's
        del grown[self.num_considered :]
        self._length += 1
        is_last = self._length >= self._max_tokens
        for candidate in grown[:width]:
            is_stopped = candidate.token_ids[-1] in self._end_ids
            if is_stopped or is_last:
                self.found.append(Found(candidate, self._score(candidate), is_stopped))
        self.found.sort(key=lambda found: -found.score)
        del self.found[width:]
        self.running = [each for each in grown if each.token_ids[-1] not in self._end_ids][:width]
        self.is_over = is_last or not self.running or not self._can_improve()

    def _score(self, candidate: Candidate) -> float:
        score: float = candidate.logprob / len(candidate.token_ids) ** self._params.length_penalty
        return score

    def _can_improve(self) -> bool:
        if len(self.found) < self._params.width:
            return True
        if self._params.early_stopping is EarlyStopping.NOW:
            return False
        penalty = self._params.length_penalty
        is_certain = self._params.early_stopping is EarlyStopping.CERTAIN
        length = self._max_tokens if is_certain and penalty > 0 else self._length
        best_possible: float = self.running[0].logprob / length**penalty
        return best_possible > self.found[-1].score


@dataclass(slots=True)
class _Run:
    """A search, and the requests of its present step."""

    arrival: Arrival
    params: BeamParams
    search: BeamSearch
    steps: list[int] = field(default_factory=list)  # run ids, in the order of the beams
    continuations: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    num_cached_tokens: int = 0

    @property
    def run_id(self) -> int:
        return self.arrival.command.run_id


class BeamHandler:
    """Between engine and scheduler: a search goes in, and comes out as one finish.

    A beam's next token is a request of its own, of the prompt and the beam's tokens. What its
    forerunner has computed is in the prefix cache up to the last full page, whoever descends from
    it; the rest, less than a page, is computed again. So beams share, fork and die as prefixes do,
    and neither scheduler nor ledger knows of them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stop_check: StopCheck,
        arrivals: Iterator[int],
        step_ids: Iterator[int],  # below zero: the I/O process's own run ids are positive
    ) -> None:
        self._scheduler = scheduler
        self._stop_check = stop_check
        self._arrivals = arrivals
        self._step_ids = step_ids
        self._runs: dict[int, _Run] = {}  # by run id
        self._owners: dict[int, _Run] = {}  # by the run ids of their steps

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, arrival: Arrival, params: BeamParams) -> None:
        """Its first step goes to the scheduler."""
        sampling = arrival.command.options.sampling
        end_ids = self._stop_check.stop_token_ids(sampling)
        run = _Run(arrival, params, BeamSearch(params, sampling.max_tokens, end_ids))
        self._runs[run.run_id] = run
        self._add_steps(run)

    def abort(self, run_id: int) -> None:
        """Drops it without a word. Unknown ids are ignored."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._abandon(run)

    def take(self, outputs: list[RunOutput]) -> list[RunOutput]:
        """What is left for others; steps of searches become their next steps, or their finish."""
        left: list[RunOutput] = []
        while outputs:
            for output in outputs:
                run = self._owners.pop(output.run_id, None)
                if run is not None:
                    left += self._advance(run, output)
                elif output.run_id >= 0:
                    left.append(output)
            outputs = self._scheduler.take_ended()  # steps that were refused
        return left

    def owner(self, step_id: int) -> int | None:
        """The run whose request this is. Ask before `take`."""
        run = self._owners.get(step_id)
        return None if run is None else run.run_id

    def _advance(self, run: _Run, output: RunOutput) -> list[RunOutput]:
        finish = output.finish
        if finish is None or finish.reason is FinishReason.ERROR or not output.logprobs:
            message = finish.message if finish is not None else None
            return [self._fail(run, message or "the beam search found no room to go on")]
        record = unpack_logprobs(output.logprobs, num_top_of(len(output.logprobs)))[0]
        run.continuations[output.run_id] = list(record.top)
        if len(run.steps) == 1 and not run.search.running[0].token_ids:
            run.num_cached_tokens = finish.num_cached_tokens
        if len(run.continuations) < len(run.steps):
            return []
        run.search.advance([run.continuations[step_id] for step_id in run.steps])
        if not run.search.is_over:
            self._add_steps(run)
            return []
        del self._runs[run.run_id]
        return [RunOutput(run.run_id, [], _finish_of(run))]

    def _add_steps(self, run: _Run) -> None:
        run.steps = list(itertools.islice(self._step_ids, len(run.search.running)))
        run.continuations.clear()
        sampling = SamplingParams(
            max_tokens=1,
            seed=0,
            temperature=0.0,
            ignore_eos=True,
            logprobs=run.search.num_considered,
        )
        command = run.arrival.command
        options = msgspec.structs.replace(command.options, sampling=sampling, pooling=None)
        for step_id, beam in zip(run.steps, run.search.running, strict=True):
            step = AddRequest(
                run_id=step_id,
                prompt_ids=command.prompt_ids + pack_token_ids(beam.token_ids),
                options=options,
            )
            # Each step waits at the place of its request.
            arrival = replace(run.arrival, command=step, number=next(self._arrivals))
            req = Req(arrival, self._stop_check)
            if beam.token_ids:
                req.num_cached_tokens = 0  # the request was counted with its first step
            self._owners[step_id] = run
            self._scheduler.add(req)

    def _fail(self, run: _Run, message: str) -> RunOutput:
        del self._runs[run.run_id]
        self._abandon(run)
        return RunOutput(run.run_id, [], Finish(FinishReason.ERROR, message=message))

    def _abandon(self, run: _Run) -> None:
        for step_id in run.steps:
            if self._owners.pop(step_id, None) is not None:
                self._scheduler.abort(step_id)


def _finish_of(run: _Run) -> Finish:
    beams = tuple(
        Beam(
            pack_token_ids(found.candidate.token_ids),
            found.candidate.logprob,
            FinishReason.STOP if found.is_stopped else FinishReason.LENGTH,
        )
        for found in run.search.found[: run.params.num_kept]
    )
    return Finish(beams[0].reason, num_cached_tokens=run.num_cached_tokens, beams=beams)
