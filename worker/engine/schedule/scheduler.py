"""Decides who runs, and what the next step computes."""

from __future__ import annotations

from typing import NamedTuple

from shared.protocol.finish import Finish, FinishReason
from worker.engine.request.req import Req, ReqStatus
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.request.step_result import StepResult
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.live_reqs import LiveReqs
from worker.engine.schedule.prefill_adder import PrefillAdder, ReserveRatio
from worker.engine.schedule.result_taker import ResultTaker, with_cached_tokens
from worker.engine.schedule.tier_ledger import TierLedger
from worker.engine.schedule.waiting_queue import (
    DEFAULT_AGING_S,
    AdmissionOrder,
    SchedulePolicy,
    WaitingQueue,
)
from worker.engine.speculation.drafter import Drafter
from worker.engine_link.engine_messages import EngineLoad, RunOutput, TierLoad


class ScheduleRules(NamedTuple):
    """Who runs first, and who with whom."""

    policy: SchedulePolicy = "fcfs"
    aging_s: float = DEFAULT_AGING_S
    num_sets: int = 1  # in which requests decode, so that as many steps are in flight


DEFAULT_RULES = ScheduleRules()


class Scheduler:
    """Continuous batching under one token budget a step.

    Requests that decode come first, one token each; what is left of the budget goes to prefill
    chunks, oldest first. A request that shares a prefix with one whose prefill runs waits until it
    is in the cache. When pages run out, a request is retracted: it waits at its old place, and its
    computed pages stay in the cache as long as nobody needs them.

    With several sets a step has its share of those that decode, and none whose token is awaited:
    what a step chooses is known before the same requests are in another one.
    """

    def __init__(
        self,
        ledger: KVLedger,
        max_running: int,
        max_context_len: int,
        vocab_size: int,
        rules: ScheduleRules = DEFAULT_RULES,
        drafter: Drafter | None = None,
        tier: TierLedger | None = None,  # None: pages that leave the pool are gone
    ) -> None:
        self._ledger = ledger
        self._tier = tier
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._max_running = max_running
        self._max_context_len = max_context_len
        self._num_sets = rules.num_sets
        self._num_planned = 0  # steps
        self._reqs = LiveReqs(ledger, WaitingQueue(rules.aging_s), drafter, tier)
        self._results = ResultTaker(self._reqs, drafter)
        self._admission_order = AdmissionOrder(rules.policy, rules.aging_s, ledger)
        self._num_in_flight = 0  # steps
        self._ended: list[RunOutput] = []  # without a step: not told yet
        self._begun: list[Req] = []  # since it was asked last
        self._reserve_ratio = ReserveRatio()
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self._reqs)

    @property
    def num_decoding(self) -> int:
        """Requests whose prompt is in steps altogether, and who are not done."""
        return len(self._reqs.running) - len(self._reqs.prefilling)

    @property
    def num_decoding_together(self) -> int:
        """How many of these a step has, if all steps have equal shares."""
        return -(-self.num_decoding // self._num_sets)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of prompts that no step has computed, and of what was retracted."""
        num_prefilling = sum(req.num_uncomputed for req in self._reqs.prefilling.values())
        return self._reqs.waiting.num_tokens + num_prefilling

    @property
    def keeps_states(self) -> bool:
        """Whether pages alone do not tell how a text goes on."""
        return self._ledger.keeps_states

    def add(self, req: Req) -> None:
        finish = self._refusal(req) or req.finish_by_tokens() or self._finish_by_memory(req)
        if finish is not None:
            req.status = ReqStatus.FINISHED
            self._ended.append(RunOutput(req.run_id, [], finish))
            return
        self._reqs.add(req)

    def abort(self, run_id: int) -> None:
        """Drops it without a word. Unknown ids are ignored."""
        self._reqs.abort(run_id)

    def flush_cache(self) -> None:
        """Forgets all cached prefixes that no running request holds."""
        self._ledger.flush()
        if self._tier is not None:
            self._tier.clear()

    def empty_pool(self) -> None:
        """The same, but for pages outside the pool."""
        self._ledger.flush()

    def serve_tier(self, token_s: float | None) -> None:
        """Between two steps. A token of a prompt is computed in `token_s`."""
        if self._tier is not None:
            self._tier.serve(self._reqs.waiting.window, token_s)

    @property
    def has_tier_work(self) -> bool:
        """Whether `serve_tier` has something to do before long."""
        return self._tier is not None and self._tier.is_busy

    @property
    def awaits_pages(self) -> bool:
        """Nobody can run before a tier has read something."""
        tier = self._tier
        if tier is None or not tier.is_reading or self._reqs.running:
            return False
        return all(tier.is_coming(req) for req in self._reqs.waiting.window)

    def next_batch(
        self, token_budget: int, prefill_budget: int | None = None
    ) -> ScheduleBatch | None:
        """None when nothing can be launched: nothing is left to do, or not before a step in flight
        has been processed.

        The budget has a token for each running request; at most `prefill_budget` of it, at least
        one, are for prefill. Each batch is to be processed, in order, and behind one that chooses
        late none is planned before it has chosen.
        Tokens that steps in flight will choose are planned with before they are known.
        """
        num_preemptions = self._num_preemptions
        if self._must_wait() or not self._make_room_for_decodes():
            return None
        while True:
            plain, drafting = self._plan_decodes(token_budget)
            num_left = token_budget - len(plain) - sum(entry.num_tokens for entry in drafting)
            if prefill_budget is not None:
                num_left = min(num_left, prefill_budget)
            adder = PrefillAdder(
                self._ledger, self._reqs.running, num_left, self._reserve_ratio.value
            )
            self._add_prefills(adder, may_admit=self._num_preemptions == num_preemptions)
            others = drafting + adder.entries
            if plain or others:
                return self._book(plain, others)
            if not self._reqs.running or self._num_in_flight:
                return None
            # Prefills hold all pages, and none can go on: one of them must give way.
            self._retract(self._victim())

    def process(self, batch: ScheduleBatch, result: StepResult) -> list[RunOutput]:
        """Books a computed step."""
        self._num_in_flight -= 1
        self._ledger.free_spares(self._num_in_flight)
        outputs = self._results.take(batch, result)
        self._reserve_ratio.on_step()
        if self._drafter is not None:
            self._drafter.on_step(batch.size)
        return outputs

    def take_ended(self) -> list[RunOutput]:
        """Requests that ended without a step since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def take_begun(self) -> list[Req]:
        """Requests that have left the queue since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def load(self) -> EngineLoad:
        ledger, drafts = self._ledger, self._results.draft_counts
        return EngineLoad(
            num_running=len(self._reqs.running),
            num_waiting=len(self._reqs.waiting),
            num_waiting_tokens=self.num_waiting_tokens,
            num_free_slots=self._max_running - len(self._reqs.running),
            num_free_tokens=ledger.num_available_pages * ledger.page_size,
            num_kv_tokens=ledger.num_tokens,
            num_preemptions=self._num_preemptions,
            num_prefix_queries=ledger.num_prefix_queries,
            num_prefix_hits=ledger.num_prefix_hits,
            num_drafted=drafts.num_drafted,
            num_accepted=drafts.num_accepted,
            accepted_by_position=tuple(drafts.accepted_by_position),
            num_pinned_tokens=ledger.num_pinned_tokens(),
            num_snapshots=ledger.snapshots.num_cached if ledger.snapshots else 0,
            tier=TierLoad() if self._tier is None else self._tier.load(),
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when the books do not agree."""
        self._reqs.check_integrity()

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
        """Whether somebody guesses, behind a token that a step in flight will choose."""
        drafter = self._drafter
        if not self._num_in_flight or drafter is None:
            return False
        return any(req.num_awaited and drafter.is_due(req) for req in self._reqs.running)

    def _make_room_for_decodes(self) -> bool:
        """False when it takes pages that a step in flight uses."""
        while self._num_pages_to_decode() > self._ledger.num_available_pages:
            if self._num_in_flight:
                return False
            if len(self._reqs.running) > 1:
                self._retract(self._victim())
            else:  # alone, and it has every page there is
                self._finish_early(self._reqs.running[0], Finish(FinishReason.LENGTH))
        return True

    def _num_pages_to_decode(self) -> int:
        """One for each whose next token begins a page."""
        return sum(
            1
            for req in self._reqs.running
            if len(req.token_ids) + req.num_awaited > req.num_slots and self._can_decode(req)
        )

    def _can_decode(self, req: Req) -> bool:
        return req.run_id not in self._reqs.prefilling and req.is_decoding and not req.is_ending

    def _plan_decodes(self, token_budget: int) -> tuple[list[ScheduledReq], list[ScheduledReq]]:
        """Those with a token each, and those that also have guesses."""
        entries: list[ScheduledReq] = []
        prefilling, drafter = self._reqs.prefilling, self._drafter
        for req in self._reqs.running if self._num_sets == 1 else self._next_set():
            # As `_can_decode`, without calls: this is asked of every request in every step.
            num_awaited = req.num_awaited
            end = len(req.token_ids) + num_awaited
            if (
                req.num_computed + req.num_in_flight + 1 != end
                or req.run_id in prefilling
                or (num_awaited and req.is_ending)
                or (num_awaited and drafter is not None and drafter.sits_out(req))
            ):
                continue
            if end > req.num_slots:
                self._ledger.extend(req, end)
            entries.append(ScheduledReq(req, end - 1, end, 1, (), num_awaited > 0))
        if drafter is None or not any(drafter.wants(entry.req) for entry in entries):
            return entries, []
        return self._plan_drafts(drafter, entries, token_budget)

    def _next_set(self) -> list[Req]:
        """A share of those that decode: who have waited longest of those whose tokens are known."""
        ready = [req for req in self._reqs.running if not req.num_awaited and self._can_decode(req)]
        ready.sort(key=lambda req: req.last_step)
        return ready[: self.num_decoding_together]

    def _plan_drafts(
        self, drafter: Drafter, entries: list[ScheduledReq], token_budget: int
    ) -> tuple[list[ScheduledReq], list[ScheduledReq]]:
        num_left = drafter.step_budget(len(entries), token_budget - len(entries))
        for entry in entries:
            req = entry.req
            if drafter.wants(req):
                num_guesses = drafter.plan(req, min(num_left, self._num_guessable(req)))
                if num_guesses:
                    self._ledger.extend(req, req.num_tokens + num_guesses)
                    num_left -= num_guesses
        guesses = drafter.guess()
        plain: list[ScheduledReq] = []
        drafting: list[ScheduledReq] = []
        for entry in entries:
            draft_ids = guesses.get(entry.req)
            if draft_ids:
                drafting.append(ScheduledReq.drafting(entry.req, draft_ids))
            else:
                plain.append(entry)
        return plain, drafting

    def _num_guessable(self, req: Req) -> int:
        """Tokens behind those that it has, within memory, and without its last one."""
        max_end = min(req.max_num_tokens - 1, self._ledger.num_tokens_in_reach(req))
        return max_end - req.num_tokens

    def _book(self, plain: list[ScheduledReq], others: list[ScheduledReq]) -> ScheduleBatch:
        """The step counts as launched."""
        for entry in plain:
            req = entry.req
            req.num_in_flight += 1
            req.num_awaited += 1
            req.last_step = self._num_planned
        for entry in others:
            entry.req.num_in_flight += entry.num_tokens
            if entry.num_samples:
                entry.req.num_awaited += 1
                self._reqs.prefilling.pop(entry.req.run_id, None)
        self._num_planned += 1
        may_await = self._num_in_flight > 0 and self._num_sets == 1
        self._num_in_flight += 1
        entries = plain + others
        chooses_late = may_await and any(
            entry.has_awaited_input and entry.req.must_know_next for entry in plain
        )
        copies = self._ledger.plan_copies(entries)
        evicted = self._ledger.take_evicted()
        if self._tier is not None:
            self._tier.save(evicted)
        pages, window_pages = self._ledger.take_fresh_pages()
        return ScheduleBatch(
            entries, len(plain), pages, window_pages, may_await, chooses_late, copies
        )

    def _add_prefills(self, adder: PrefillAdder, *, may_admit: bool) -> None:
        for req in self._reqs.prefilling.values():
            if adder.token_budget > 0:
                adder.add_chunk(req)
        while may_admit and adder.is_open and self._admit_from_window(adder):
            pass

    def _admit_from_window(self, adder: PrefillAdder) -> bool:
        """False when nobody joined, or nobody else can.

        Those who would compute what somebody is computing wait until they find it.
        """
        has_admitted = False
        for req in self._admission_order.candidates(self._reqs.waiting):
            if self._reqs.pending_prefixes.will_serve(req):
                continue
            if self._tier is not None and self._tier.is_coming(req):
                continue
            if not adder.is_open or not adder.try_admit(req):
                return False
            self._reqs.begin(req)
            self._begun.append(req)
            has_admitted = True
        return has_admitted

    def _victim(self) -> Req:
        return max(self._reqs.running, key=lambda req: req.retraction_rank)

    def _retract(self, req: Req) -> None:
        self._reqs.retract(req)
        self._num_preemptions += 1
        self._reserve_ratio.on_retraction(self._reqs.running)

    def _finish_early(self, req: Req, finish: Finish) -> None:
        self._reqs.end(req)
        self._ended.append(RunOutput(req.run_id, [], with_cached_tokens(finish, req)))
