"""Transcription: windows of one audio, heard one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.hearing_card import HearingCard, TranscriptRule
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids
from shared.token_log.transcript import Transcript
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.req_window import ReqWindow, Sound
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.scheduler import Scheduler
from worker.engine_link.engine_messages import AddRequest, RunOptions, RunOutput

_SEED_MASK = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class _Run:
    """A transcription, and the request of its present window."""

    arrival: Arrival
    sound: Sound
    prompt_ids: list[int]  # of the first window
    transcript: Transcript
    num_output_tokens: int
    step_id: int = 0

    @property
    def run_id(self) -> int:
        return self.arrival.command.run_id


class TranscriptionHandler:
    """Between engine and scheduler: a window is a request of its own, whose tokens are its run's.

    Where a window begins is a function of the tokens before it: whoever goes on with a request
    hears the same ones.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stop_check: StopCheck,
        arrivals: Iterator[int],
        step_ids: Iterator[int],
        card: HearingCard | None,
    ) -> None:
        self._scheduler = scheduler
        self._stop_check = stop_check
        self._arrivals = arrivals
        self._step_ids = step_ids
        self._card = card
        self._runs: dict[int, _Run] = {}  # by run id
        self._owners: dict[int, _Run] = {}  # by the run ids of their requests

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, arrival: Arrival, sound: Sound) -> RunOutput | None:
        """Its next window goes to the scheduler; or its finish, where its output is whole."""
        command, card, audio = arrival.command, self._card, arrival.command.audio
        assert card is not None, "the model hears"
        assert audio is not None, "it has sound"
        prompt_ids = unpack_token_ids(command.prompt_ids)
        output_ids = unpack_token_ids(command.output_ids)
        rule = TranscriptRule.of(card, prompt_ids, audio.num_frames)
        run = _Run(arrival, sound, prompt_ids, Transcript(rule), len(output_ids))
        for token_id in output_ids:
            run.transcript.add(token_id)
        self._runs[run.run_id] = run
        if (finish := self._finish_of(run)) is not None:
            del self._runs[run.run_id]
            return RunOutput(run.run_id, [], finish)
        self._add_window(run, card)
        return None

    def abort(self, run_id: int) -> None:
        """Drops it without a word. Unknown ids are ignored."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            del self._owners[run.step_id]
            self._scheduler.abort(run.step_id)

    def take(self, outputs: list[RunOutput]) -> list[RunOutput]:
        """The same, those of windows as their runs'."""
        left: list[RunOutput] = []
        while outputs:
            for output in outputs:
                run = self._owners.get(output.run_id)
                left.append(output if run is None else self._advance(run, output))
            outputs = self._scheduler.take_ended()  # windows that were refused
        return left

    def owner(self, step_id: int) -> int | None:
        """The run whose request this is. Ask before `take`."""
        run = self._owners.get(step_id)
        return None if run is None else run.run_id

    def _advance(self, run: _Run, output: RunOutput) -> RunOutput:
        has_ended = False
        for token_id in output.token_ids:
            has_ended = run.transcript.add(token_id)
        run.num_output_tokens += len(output.token_ids)
        finish = output.finish
        if finish is not None and not has_ended and finish.reason is not FinishReason.ERROR:
            message = "the engine's memory has no room for a window"
            finish = Finish(FinishReason.ERROR, message=message)
        elif finish is not None and finish.reason is not FinishReason.ERROR:
            finish = self._finish_of(run)
            del self._owners[run.step_id]
            if finish is None:
                assert self._card is not None, "the model hears"
                self._add_window(run, self._card)
        if finish is not None:
            self._owners.pop(run.step_id, None)
            del self._runs[run.run_id]
        return msgspec.structs.replace(output, run_id=run.run_id, finish=finish)

    def _finish_of(self, run: _Run) -> Finish | None:
        if run.transcript.is_over:
            return Finish(FinishReason.STOP)
        max_tokens = run.arrival.command.options.sampling.max_tokens
        if run.num_output_tokens >= max_tokens:
            message = f"the transcript has {max_tokens} tokens, and there is more to be heard"
            return Finish(FinishReason.ERROR, message=message)
        return None

    def _add_window(self, run: _Run, card: HearingCard) -> None:
        transcript, command = run.transcript, run.arrival.command
        window = ReqWindow(
            run.sound,
            transcript.seek,
            command.options.namespace,
            card,
            transcript.needs_language,
        )
        run.step_id = next(self._step_ids)
        step = AddRequest(
            run_id=run.step_id,
            prompt_ids=pack_token_ids(self._prompt_of(run, card)),
            output_ids=pack_token_ids(transcript.window_ids),
            options=self._options(run, window),
        )
        # Each window waits at the place of its run.
        arrival = replace(
            run.arrival, command=step, number=next(self._arrivals), sound=None, window=window
        )
        self._owners[run.step_id] = run
        self._scheduler.add(Req(arrival, self._stop_check))

    def _prompt_of(self, run: _Run, card: HearingCard) -> list[int]:
        """The prompt of its present window."""
        transcript, start = run.transcript, run.prompt_ids.index(card.start_id)
        if transcript.needs_language:
            return [card.start_id]
        text, task = run.prompt_ids[:start], run.prompt_ids[start:]
        if transcript.language_id is not None:
            task.insert(1, transcript.language_id)
        return [*text, *task] if transcript.is_first_window else task

    def _options(self, run: _Run, window: ReqWindow) -> RunOptions:
        options = run.arrival.command.options
        sampling = msgspec.structs.replace(
            options.sampling,
            max_tokens=self._stop_check.max_context_len,
            seed=(options.sampling.seed + window.seek) & _SEED_MASK,  # other draws in each
        )
        if window.detects_language:
            ids = tuple(window.card.languages.values())
            sampling = msgspec.structs.replace(
                sampling, max_tokens=1, temperature=0.0, allowed_token_ids=ids
            )
        return msgspec.structs.replace(
            options, sampling=sampling, namespace=window.prefix_namespace, public=None
        )
