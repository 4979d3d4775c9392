"""Decides what the next step computes, and what its result means for each request."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from shared.protocol.finish import Finish, FinishReason
from worker.engine.admission_order import AdmissionOrder, SchedulePolicy
from worker.engine.kv.kv_ledger import KVLedger
from worker.engine.pending_prefixes import PendingPrefixes
from worker.engine.prefill_adder import PrefillAdder
from worker.engine.req import Req, ReqStatus
from worker.engine.reserve_ratio import ReserveRatio
from worker.engine.sampling.sample_error import SampleError
from worker.engine.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.speculation.ngram_drafter import NgramDrafter
from worker.engine.step_result import StepResult
from worker.engine.waiting_queue import DEFAULT_AGING_S, WaitingQueue
from worker.engine_messages import EngineLoad, RunOutput


class Scheduler:
    """Continuous batching under one token budget a step.

    Requests that decode come first, one token each; what is left of the budget goes to prefill
    chunks, oldest first. A request that shares a prefix with one whose prefill runs waits until it
    is in the cache. When pages run out, a request is retracted: it waits at its old place, and its
    computed pages stay in the cache as long as nobody needs them.
    """

    def __init__(
        self,
        ledger: KVLedger,
        max_running: int,
        max_context_len: int,
        vocab_size: int,
        policy: SchedulePolicy = "fcfs",
        aging_s: float = DEFAULT_AGING_S,
        drafter: NgramDrafter | None = None,
    ) -> None:
        self._ledger = ledger
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._max_running = max_running
        self._max_context_len = max_context_len
        self._reqs: dict[int, Req] = {}  # waiting and running, by run_id
        self._waiting = WaitingQueue(aging_s)
        self._admission_order = AdmissionOrder(policy, aging_s, ledger)
        self._pending_prefixes = PendingPrefixes(ledger)
        self._running: list[Req] = []  # in order of admission
        # Of these, by run_id: some of their tokens are in no step yet. All others decode.
        self._prefilling: dict[int, Req] = {}
        # Ended, but a step in flight uses their pages; whether these are worth keeping then.
        self._leaving: dict[Req, bool] = {}
        self._num_in_flight = 0  # steps
        self._ended: list[RunOutput] = []  # without a step: not told yet
        self._reserve_ratio = ReserveRatio()
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self._reqs)

    def add(self, req: Req) -> None:
        assert req.run_id not in self._reqs, "run ids are never used twice"
        finish = self._refusal(req) or req.finish_by_tokens() or self._finish_by_memory(req)
        if finish is not None:
            req.status = ReqStatus.FINISHED
            self._ended.append(RunOutput(req.run_id, [], finish))
            return
        self._reqs[req.run_id] = req
        self._waiting.push(req)

    def abort(self, run_id: int) -> None:
        """Drops it without a word. Unknown ids are ignored."""
        req = self._reqs.get(run_id)
        if req is None:
            return
        if req.status is ReqStatus.WAITING:
            self._waiting.remove(req)
        self._end(req)

    def flush_cache(self) -> None:
        """Forgets all cached prefixes that no running request holds."""
        self._ledger.flush()

    def next_batch(self, token_budget: int) -> ScheduleBatch | None:
        """None when nothing can be launched: nothing is left to do, or not before a step in flight
        has been processed.

        The budget has a token for each running request. Each batch is to be processed, in order.
        Tokens that steps in flight will choose are planned with before they are known.
        """
        num_preemptions = self._num_preemptions
        if self._must_wait() or not self._make_room_for_decodes():
            return None
        while True:
            plain, drafting = self._plan_decodes(token_budget)
            num_left = token_budget - len(plain) - sum(entry.num_tokens for entry in drafting)
            adder = PrefillAdder(self._ledger, self._running, num_left, self._reserve_ratio.value)
            self._add_prefills(adder, may_admit=self._num_preemptions == num_preemptions)
            others = drafting + adder.entries
            if plain or others:
                return self._book(plain, others)
            if not self._running or self._num_in_flight:
                return None
            # Prefills hold all pages, and none can go on: one of them must give way.
            self._retract(self._victim())

    def process(self, batch: ScheduleBatch, result: StepResult) -> list[RunOutput]:
        """Books a computed step."""
        self._num_in_flight -= 1
        self._ledger.free_spares()
        samples = zip(result.token_ids, result.logprobs or itertools.repeat(b""), strict=False)
        plain_samples = list(itertools.islice(samples, batch.num_plain))
        outputs = self._process_plain(batch.entries[: batch.num_plain], plain_samples)
        for entry in batch.others:
            req = entry.req
            entry_samples = list(itertools.islice(samples, entry.num_samples))
            req.num_in_flight -= entry.num_tokens
            req.num_awaited -= entry.num_samples > 0
            if req in self._leaving:
                self._maybe_release(req)
                continue
            if entry_samples:
                self._pending_prefixes.discard(req)
            req.num_computed = entry.end - len(entry.draft_ids)
            error = self._take_prompt_logprobs(entry, result)
            if error is not None:
                outputs.append(RunOutput(req.run_id, [], self._fail(req, error)))
                continue
            if entry_samples:
                outputs.append(self._take_samples(entry, entry_samples))
            elif entry.gives_embedding:
                outputs.append(self._take_embedding(req, result.embeddings[req.run_id]))
            if entry.draft_ids and self._drafter is not None:
                num_accepted = max(0, len(outputs[-1].token_ids) - 1)
                self._drafter.on_result(req, len(entry.draft_ids), num_accepted)
            elif req.status is ReqStatus.RUNNING:
                self._ledger.commit(req)
        self._reserve_ratio.on_step()
        return outputs

    def take_ended(self) -> list[RunOutput]:
        """Requests that ended without a step since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def load(self) -> EngineLoad:
        ledger = self._ledger
        num_prefill_tokens = sum(req.num_uncomputed for req in self._prefilling.values())
        return EngineLoad(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_waiting_tokens=self._waiting.num_tokens + num_prefill_tokens,
            num_free_slots=self._max_running - len(self._running),
            num_free_tokens=ledger.num_available_pages * ledger.page_size,
            num_kv_tokens=ledger.num_tokens,
            num_preemptions=self._num_preemptions,
            num_prefix_queries=ledger.num_prefix_queries,
            num_prefix_hits=ledger.num_prefix_hits,
            num_drafted=self._drafter.num_drafted if self._drafter else 0,
            num_accepted=self._drafter.num_accepted if self._drafter else 0,
            num_pinned_tokens=ledger.num_pinned_tokens(),
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when the books do not agree."""
        if len(self._reqs) != len(self._waiting) + len(self._running):
            raise RuntimeError("a request is neither waiting nor running, or both")
        if any(
            not (req.run_id in self._prefilling or req.is_decoding or req.num_in_flight)
            for req in self._running
        ):
            raise RuntimeError("a request decodes before its prefill is over")
        self._waiting.check_integrity()
        self._ledger.check_integrity([*self._running, *self._leaving])
        if any(req.num_in_flight < 1 for req in self._leaving):
            raise RuntimeError("a request that has ended keeps its pages")

    def _refusal(self, req: Req) -> Finish | None:
        if req.num_prompt_tokens == 0:
            return Finish(FinishReason.ERROR, message="the prompt is empty")
        largest_id = max(req.token_ids)
        if largest_id >= self._vocab_size:
            message = f"token id {largest_id} is beyond the model's {self._vocab_size}"
            return Finish(FinishReason.ERROR, message=message)
        # The last token needs no slot, unless it is the prompt's.
        max_held = self._ledger.num_tokens + (req.num_output_tokens > 0)
        limits = (
            (self._max_context_len, "the model takes"),
            (max_held, "the engine's memory holds"),
        )
        for limit, takes in limits:
            if req.num_tokens > limit:
                message = f"prompt and output have {req.num_tokens} tokens, {takes} {limit}"
                return Finish(FinishReason.ERROR, message=message)
        return None

    def _finish_by_memory(self, req: Req) -> Finish | None:
        is_full = req.num_tokens > self._ledger.num_tokens
        return Finish(FinishReason.LENGTH) if is_full else None

    def _must_wait(self) -> bool:
        """Whether somebody needs a token that a step in flight will choose."""
        if not self._num_in_flight:
            return False
        drafter = self._drafter
        return any(
            req.num_awaited
            and (req.needs_known_tokens or (drafter is not None and drafter.is_due(req)))
            for req in self._running
        )

    def _make_room_for_decodes(self) -> bool:
        """False when it takes pages that a step in flight uses."""
        while self._num_pages_to_decode() > self._ledger.num_available_pages:
            if self._num_in_flight:
                return False
            if len(self._running) > 1:
                self._retract(self._victim())
            else:  # alone, and it has every page there is
                self._finish_early(self._running[0], Finish(FinishReason.LENGTH))
        return True

    def _num_pages_to_decode(self) -> int:
        """One for each whose next token begins a page."""
        return sum(
            1
            for req in self._running
            if len(req.token_ids) + req.num_awaited > req.num_slots and self._can_decode(req)
        )

    def _can_decode(self, req: Req) -> bool:
        return req.run_id not in self._prefilling and req.is_decoding and not req.is_ending

    def _plan_decodes(self, token_budget: int) -> tuple[list[ScheduledReq], list[ScheduledReq]]:
        """Those with a token each, and those that also have guesses."""
        entries: list[ScheduledReq] = []
        for req in self._running:
            # As `_can_decode`, without calls: this is asked of every request in every step.
            num_awaited = req.num_awaited
            end = len(req.token_ids) + num_awaited
            if (
                req.num_computed + req.num_in_flight + 1 != end
                or req.run_id in self._prefilling
                or (num_awaited and req.is_ending)
            ):
                continue
            if end > req.num_slots:
                self._ledger.extend(req, end)
            entries.append(ScheduledReq(req, end - 1, end, 1, (), num_awaited > 0))
        if self._drafter is None:
            return entries, []
        return self._plan_drafts(self._drafter, entries, token_budget)

    def _plan_drafts(
        self, drafter: NgramDrafter, entries: list[ScheduledReq], token_budget: int
    ) -> tuple[list[ScheduledReq], list[ScheduledReq]]:
        plain: list[ScheduledReq] = []
        drafting: list[ScheduledReq] = []
        num_left = drafter.step_budget(len(entries), token_budget - len(entries))
        for entry in entries:
            req = entry.req
            max_end = min(req.max_num_tokens - 1, self._ledger.num_tokens_in_reach(req))
            draft_ids = drafter.draft(req, min(num_left, max_end - req.num_tokens))
            if draft_ids:
                self._ledger.extend(req, req.num_tokens + len(draft_ids))
                drafting.append(ScheduledReq.drafting(req, draft_ids))
                num_left -= len(draft_ids)
            else:
                plain.append(entry)
        return plain, drafting

    def _book(self, plain: list[ScheduledReq], others: list[ScheduledReq]) -> ScheduleBatch:
        """The step counts as launched."""
        for entry in plain:
            req = entry.req
            req.num_in_flight += 1
            req.num_awaited += 1
        for entry in others:
            entry.req.num_in_flight += entry.num_tokens
            if entry.num_samples:
                entry.req.num_awaited += 1
                self._prefilling.pop(entry.req.run_id, None)
        may_await = self._num_in_flight > 0
        self._num_in_flight += 1
        pages = self._ledger.take_fresh_pages()
        return ScheduleBatch(plain + others, len(plain), pages, may_await)

    def _add_prefills(self, adder: PrefillAdder, *, may_admit: bool) -> None:
        for req in self._prefilling.values():
            if adder.token_budget > 0:
                adder.add_chunk(req)
        while may_admit and adder.is_open and self._admit_from_window(adder):
            pass

    def _admit_from_window(self, adder: PrefillAdder) -> bool:
        """False when nobody joined, or nobody else can.

        Those who would compute what somebody is computing wait until they find it.
        """
        has_admitted = False
        for req in self._admission_order.candidates(self._waiting):
            if self._pending_prefixes.will_serve(req):
                continue
            if not adder.is_open or not adder.try_admit(req):
                return False
            self._waiting.remove(req)
            self._begin(req)
            has_admitted = True
        return has_admitted

    def _begin(self, req: Req) -> None:
        req.status = ReqStatus.RUNNING
        self._running.append(req)
        self._prefilling[req.run_id] = req
        self._pending_prefixes.add(req)

    def _leave(self, req: Req) -> None:
        """It is not in the running batch any more."""
        self._running.remove(req)
        self._prefilling.pop(req.run_id, None)
        self._pending_prefixes.discard(req)

    def _victim(self) -> Req:
        return max(self._running, key=lambda req: req.retraction_rank)

    def _retract(self, req: Req) -> None:
        self._ledger.release(req)
        self._leave(req)
        req.status = ReqStatus.WAITING
        self._waiting.push(req)
        self._num_preemptions += 1
        self._reserve_ratio.on_retraction(self._running)

    def _take_prompt_logprobs(self, entry: ScheduledReq, result: StepResult) -> SampleError | None:
        """Of a chunk of the prompt, where they are wanted."""
        req = entry.req
        if req.num_prompt_top is None:
            return None
        records = result.prompt_logprobs[req.run_id]
        if isinstance(records, SampleError):
            return records
        req.add_prompt_logprobs(entry.start, records)
        return None

    def _process_plain(
        self, entries: list[ScheduledReq], samples: list[tuple[int | SampleError, bytes]]
    ) -> list[RunOutput]:
        """One token each: what nearly every request does in nearly every step."""
        outputs: list[RunOutput] = []
        for entry, (token_id, logprobs) in zip(entries, samples, strict=True):
            req = entry.req
            req.num_in_flight -= 1
            req.num_awaited -= 1
            if self._leaving and req in self._leaving:
                self._maybe_release(req)
                continue
            req.num_computed = entry.end
            if isinstance(token_id, SampleError):
                outputs.append(RunOutput(req.run_id, [], self._fail(req, token_id)))
                continue
            ending: Finish | None = None
            if req.goes_on_behind(token_id):
                req.token_ids.append(token_id)
            else:
                ending = self._append(req, token_id)
            outputs.append(RunOutput(req.run_id, [token_id], ending, logprobs))
        return outputs

    def _take_samples(
        self, entry: ScheduledReq, samples: Sequence[tuple[int | SampleError, bytes]]
    ) -> RunOutput:
        """Tokens and their logprobs, and at first those of the prompt."""
        req = entry.req
        prompt_logprobs = b"" if req.num_prompt_top is None else req.take_prompt_logprobs()
        if req.sampling.max_tokens == 0:  # only its prompt was to be scored
            self._end(req)
            finish = _with_cached_tokens(Finish(FinishReason.LENGTH), req)
            return RunOutput(req.run_id, [], finish, prompt_logprobs=prompt_logprobs)
        num_before = req.num_tokens
        ending = self._append_samples(entry, [token_id for token_id, _ in samples])
        taken_ids = req.token_ids[num_before:].tolist()
        logprobs = b"".join(records for _, records in samples[: len(taken_ids)])
        return RunOutput(req.run_id, taken_ids, ending, logprobs, prompt_logprobs)

    def _append_samples(
        self, entry: ScheduledReq, sampled_ids: Sequence[int | SampleError]
    ) -> Finish | None:
        """A sampled token counts when all drafts before it are what was sampled there.

        By then the keys and values of these drafts are in the pool; of the others they are not
        counted, and will be overwritten.
        """
        req = entry.req
        for token_id, draft_id in itertools.zip_longest(sampled_ids, entry.draft_ids):
            if isinstance(token_id, SampleError):
                return self._fail(req, token_id)
            ending = self._append(req, token_id)
            if ending is not None:
                return ending
            if token_id != draft_id:
                break
            req.num_computed += 1
        return None

    def _append(self, req: Req, token_id: int) -> Finish | None:
        req.append(token_id)
        ending = req.finish_by_tokens()
        if ending is None:
            return None
        self._end(req)
        return _with_cached_tokens(ending, req)

    def _fail(self, req: Req, error: SampleError) -> Finish:
        self._end(req, keep=error is not SampleError.NOT_A_NUMBER)
        return Finish(FinishReason.ERROR, message=error.value)

    def _take_embedding(self, req: Req, embedding: bytes | SampleError) -> RunOutput:
        if isinstance(embedding, SampleError):
            return RunOutput(req.run_id, [], self._fail(req, embedding))
        self._end(req)
        finish = Finish(FinishReason.STOP, embedding=embedding)
        return RunOutput(req.run_id, [], _with_cached_tokens(finish, req))

    def _finish_early(self, req: Req, finish: Finish) -> None:
        self._end(req)
        self._ended.append(RunOutput(req.run_id, [], _with_cached_tokens(finish, req)))

    def _end(self, req: Req, *, keep: bool = True) -> None:
        """No step has it from now on; what it holds is free when none in flight uses it."""
        if req.status is ReqStatus.RUNNING:
            self._leave(req)
        req.status = ReqStatus.FINISHED
        del self._reqs[req.run_id]
        if self._drafter is not None:
            self._drafter.forget(req)
        self._leaving[req] = keep
        self._maybe_release(req)

    def _maybe_release(self, req: Req) -> None:
        if req.num_in_flight == 0:
            self._ledger.release(req, keep=self._leaving.pop(req))


def _with_cached_tokens(finish: Finish, req: Req) -> Finish:
    return msgspec.structs.replace(finish, num_cached_tokens=req.num_cached_tokens or 0)
