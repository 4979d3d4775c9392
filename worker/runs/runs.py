"""The runs of held requests: what goes to the engine, and what it makes on its way to the log."""

from __future__ import annotations

import itertools
import time

import msgspec
from tokenizers import Tokenizer

from shared.protocol.finish import Beam, Finish, FinishReason, RunFacts
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.prompt_object import PromptData
from shared.protocol.reply import TextParams
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids
from shared.token_log.visible_text import TokenizerDecoder, VisibleText
from worker.affinity.page_peers import PagePeers
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_messages import (
    AddRequest,
    RunAudio,
    RunBegin,
    RunEmbeds,
    RunImage,
    RunOptions,
    RunOutput,
    StepOutput,
)
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest, HoldState, LoggedOutput
from worker.held.held_requests import HeldRequests
from worker.held.run_clock import RunClock
from worker.held.run_trace import RunTraces
from worker.metrics.worker_metrics import WorkerMetrics, WorkMeter
from worker.runs.token_log import TokenLog


class Runs:
    """Invariant: a request is written to the log only in state RUNNING or FINISHING, and only under
    its own epoch.
    """

    def __init__(
        self,
        held_requests: HeldRequests,
        engine: EngineHost,
        token_log: TokenLog,
        tokenizer: Tokenizer,
        prefixes: PoolPrefixes,
        peers: PagePeers,
        traces: RunTraces,
        metrics: WorkerMetrics,
    ) -> None:
        self._held_requests = held_requests
        self._engine = engine
        self._token_log = token_log
        self._tokenizer = tokenizer
        self._prefixes = prefixes
        self._peers = peers
        self._traces = traces
        self._metrics = metrics
        self._run_ids = itertools.count(1)
        self._num_made = 0  # tokens since `flush`
        self.meter = WorkMeter()

    def hold(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain | None
    ) -> HeldRequest:
        """A request that this worker tries to claim; `chain` is of its prompt, if that came along
        with it.
        """
        held = HeldRequest(
            request,
            delivery,
            self._visible_text(request),
            chain=chain if request.prompt_ids else None,
            trace=self._traces.begin(request, delivery),
        )
        if request.given is not None:
            held.resume_from(LoggedOutput.given(request), self._visible_text(request))
        self._held_requests.add(held)
        return held

    def _visible_text(self, request: GenerateRequest) -> VisibleText | None:
        """What decides on its stop strings; None when it has none."""
        if not request.text.stop:
            return None
        return VisibleText(TokenizerDecoder(self._tokenizer, request.text), request.text)

    def start(self, held: HeldRequest, prompt: PromptData, pages: str = "") -> None:
        """Give it to the engine, to go on after the tokens that it has. `pages`: where those of its
        text were put, which the engine reads if it is its place, too, or fetches from a worker
        there.
        """
        if not self._held_requests.num_runs:
            self._engine.mark_busy()
        request = held.request
        holder = self._note_prompt(held, prompt.prompt_ids)
        is_here = bool(pages) and self._peers.place == pages
        peer = self._peers.at(pages) if pages else self._peers.of(holder)
        options = RunOptions(
            sampling=request.sampling,
            priority=request.priority,
            namespace=self._prefixes.namespace(request),
            public=self._prefixes.public(request),
            pooling=request.pooling,
            adapter=request.adapter,
            keep=request.keep,
            seeks_pages=is_here,
            peer=None if is_here else peer,
        )
        held.run_id = next(self._run_ids)
        held.clock = RunClock(time.monotonic())
        self._held_requests.begin_run(held)
        if held.trace is not None:
            held.trace.on_started()
        self._engine.add(
            AddRequest(
                run_id=held.run_id,
                prompt_ids=prompt.prompt_ids,
                output_ids=pack_token_ids(held.tokens),
                options=options,
                images=tuple(
                    RunImage(
                        each.start,
                        each.num_tokens,
                        each.digest,
                        pixels,
                        each.height,
                        each.width,
                        each.num_frames,
                        goes_on=each.goes_on,
                        time=each.time,
                        num_sound_frames=each.num_sound_frames,
                    )
                    for each, pixels in zip(request.images, prompt.pixels, strict=False)
                ),
                embeds=_embeds_of(request, prompt),
                audio=_audio_of(request, prompt),
            )
        )

    def confirm(
        self, held: HeldRequest, prefix: LoggedOutput, prompt: PromptData, pages: str = ""
    ) -> None:
        """Its claim is stored: what an early run made meanwhile goes to the log now.

        Behind a longer prefix an early run counts for nothing: it is started again.
        """
        is_resumed = len(prefix.tokens) > held.num_prefix
        self._metrics.requests.note_taken(held, is_resumed=is_resumed)
        if is_resumed:
            self._held_requests.abort(held)
            held.resume_from(prefix, self._visible_text(held.request))
        if not held.run_id and held.finish is None:
            self.start(held, prompt, pages)
        self._log_new_tokens(held, time.monotonic())
        self._token_log.flush()

    def undo(self, held: HeldRequest) -> None:
        """Stop an early run, and forget what it made: nothing of it is logged."""
        self._held_requests.abort(held)
        held.resume_from(LoggedOutput.given(held.request), self._visible_text(held.request))

    def on_step(self, step: StepOutput) -> bool:
        """Whether a run has ended: there is room for another. `flush` comes behind it."""
        now = time.monotonic()
        num_tokens = 0
        has_ended = False
        for begun in step.begun:
            self._note_begun(begun)
        with_shares = self._note_shares(step)
        for output in step.outputs:
            held = self._held_requests.of_run(output.run_id)
            if held is None:
                continue
            if output.token_ids and output.run_id not in with_shares:
                held.cost.engine_s += step.token_s
            self._accept(held, output, now)
            num_tokens += len(output.token_ids)
            if held.finish is not None:
                num_tokens += held.finish.num_beam_tokens
                has_ended = True
        if step.num_tokens:
            self._metrics.runs.step_tokens.observe(step.num_tokens)
        self._num_made += num_tokens
        return has_ended

    def flush(self) -> None:
        """What the steps up to now have made is counted, and goes to the log."""
        num_made, self._num_made = self._num_made, 0
        self._metrics.requests.generation_tokens.inc(num_made)
        self.meter.note_tokens(num_made)
        self._token_log.flush()

    def _note_shares(self, step: StepOutput) -> set[int]:
        """What runs had of it that were given more than a token; their ids."""
        for share in step.shares:
            held = self._held_requests.of_run(share.run_id)
            if held is not None:
                num_tokens, num_drafted = share.num_tokens, share.num_drafted
                held.cost.note_share(num_tokens, step.token_s, num_drafted=num_drafted)
        return {share.run_id for share in step.shares}

    def _note_begun(self, begun: RunBegin) -> None:
        held = self._held_requests.of_run(begun.run_id)
        if held is not None and held.clock is not None:
            held.clock.begin(begun.queue_s, begun.num_cached_tokens)
            if held.trace is not None:
                held.trace.on_begun(begun.queue_s)

    def _accept(self, held: HeldRequest, output: RunOutput, now: float) -> None:
        num_prefill = 0 if len(held.tokens) > held.num_prefix else held.num_prefill_tokens
        finish = output.finish
        if finish is not None:
            finish = self._storable(held.request, finish)
        if held.accept(output, finish):
            self._engine.abort(held.run_id)
        clock = held.clock
        if clock is not None and (not clock.first_token_at or held.finish is not None):
            if not clock.first_token_at and held.progress_epoch:
                held.cost.repeat()  # up to where the worker before it was
            clock.note_output(now, is_last=held.finish is not None)
            if held.trace is not None:
                held.trace.on_output(held.finish, held.num_output_tokens)
        if num_prefill and (held.finish is not None or not held.num_prefill_tokens):
            self.meter.note_tokens(num_prefill)
        if held.finish is not None:
            self.meter.note_finish(held)
            self._held_requests.end_run(held)
            self._note_output(held)
        if held.state is HoldState.RUNNING:
            self._log_new_tokens(held, now)

    def _storable(self, request: GenerateRequest, finish: Finish) -> Finish:
        """A result that no message can carry would be resent for ever."""
        if not (finish.embedding or finish.beams):
            return finish
        if finish.beams:
            finish = _with_texts(finish, self._tokenizer, request.text)
        what = "an embedding" if finish.embedding else "beams"
        if finish.num_result_bytes <= self._token_log.max_result_bytes:
            return finish
        message = (
            f"{what} of {finish.num_result_bytes} bytes: more than the broker's max_payload "
            f"has room for, {self._token_log.max_result_bytes}"
        )
        return Finish(FinishReason.ERROR, message=message)

    def _note_prompt(self, held: HeldRequest, prompt_ids: bytes) -> str:
        """The prefix is as good as here: the engine lets others wait for what it computes. Returns
        the worker that had clearly more of it; "": none.
        """
        request = held.request
        if request.pooling is not None or request.audio is not None or not self._prefixes.is_open:
            return ""
        if held.chain is None:
            held.chain = self._prefixes.chain(held.request, prompt_ids)
        held.num_cached_blocks = self._prefixes.own.num_matching(held.chain.hashes)
        has_peers = self._peers.is_there_any
        holder = self._prefixes.place_for(request, held.chain) if has_peers else None
        self._prefixes.note(held.chain, held.request)
        return "" if holder is None else holder.worker

    def _note_output(self, held: HeldRequest) -> None:
        """The next turn of a conversation begins with it."""
        if held.chain is not None:
            held.chain.extend(pack_token_ids(held.tokens[:-1]))  # the last one was never an input
            self._prefixes.note(held.chain, held.request)
            self._prefixes.keep(held.chain, held.request)

    def _log_new_tokens(self, held: HeldRequest, now: float) -> None:
        if held.finish is not None:
            # Of a request that its prefix had ended already there is no clock.
            facts = held.clock.facts(held.workers) if held.clock else RunFacts(held.workers)
            if held.request.given is not None:
                facts = msgspec.structs.replace(facts, num_given=held.request.given.num_tokens)
            held.finish = msgspec.structs.replace(held.finish, run=facts)
            if held.num_cached_before is not None:
                held.finish = msgspec.structs.replace(
                    held.finish, num_cached_tokens=held.num_cached_before
                )
        entry = held.next_entry(now)
        if entry is None:
            return
        self._token_log.append(entry)
        if entry.finish is not None:
            self._metrics.requests.note_finish(held)
            self._metrics.runs.note_finish(held)
        elif held.is_restatement_due(now):
            self._token_log.append(held.restate(now))
        if held.watched is not None and held.has_progressed:
            held.watched.set()


def _with_texts(finish: Finish, tokenizer: Tokenizer, params: TextParams) -> Finish:
    """The same, each beam with the text that a client would have seen grow."""
    beams = tuple(
        msgspec.structs.replace(beam, text=_beam_text(beam, tokenizer, params))
        for beam in finish.beams
    )
    return msgspec.structs.replace(finish, beams=beams)


def _beam_text(beam: Beam, tokenizer: Tokenizer, params: TextParams) -> str:
    visible = VisibleText(TokenizerDecoder(tokenizer, params), params)
    for token_id in unpack_token_ids(beam.token_ids):
        visible.add(token_id)
    visible.finish()
    return visible.text


def _embeds_of(request: GenerateRequest, prompt: PromptData) -> RunEmbeds | None:
    embeds = request.embeds
    return None if embeds is None else RunEmbeds(embeds.width, embeds.dtype, prompt.pixels[-1])


def _audio_of(request: GenerateRequest, prompt: PromptData) -> RunAudio | None:
    audio = request.audio
    return None if audio is None else RunAudio(audio.num_frames, audio.digest, prompt.pixels[-1])
