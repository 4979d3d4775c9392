"""Random adds, aborts and steps, against what each request alone would get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.worker.engine.depth import IS_DEEP, stateful_settings
from tests.worker.engine.fake_runner import (
    NAN_TOKEN,
    DelayedRunner,
    FakeTier,
    Model,
    Stage,
    expected_embedding,
    expected_output,
    looping_token,
    next_token,
    ngram_drafter,
    suffix_drafter,
)
from tests.worker.engine.schedule.test_kv_model import cached_prefixes
from worker.engine.cache.state_snapshots import StateSnapshots
from worker.engine.request.req import Req
from worker.engine.schedule.waiting_queue import SchedulePolicy
from worker.engine.speculation.drafter import Drafter
from worker.engine.speculation.earlier_outputs import EarlierOutputs

DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "off": lambda: None,
    "ngram": lambda: ngram_drafter(4, 1, 2),
    "suffix": lambda: suffix_drafter(4, 1),
    "earlier": lambda: suffix_drafter(4, 1, EarlierOutputs(2)),
}
MAX_CONTEXT_LEN = 40

num_steps_done = 0


class SchedulerMachine(RuleBasedStateMachine):
    """Few token values and small pools: prefixes collide, pages run out, requests are retracted."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.tier: FakeTier | None = None
        self.prompts: dict[int, list[int]] = {}
        self.resumed: dict[int, int] = {}
        self.max_tokens: dict[int, int] = {}
        self.aborted: dict[int, int] = {}  # with the tokens put out until then
        self.eos_token_ids: tuple[int, ...] = ()
        self.pooled: dict[int, PoolingKind] = {}
        self.namespaces: dict[int, bytes] = {}
        self.num_public: dict[int, int] = {}  # tokens, of those that have some

    @initialize(
        num_pages=st.integers(3, 24),
        page_size=st.integers(1, 4),
        max_running=st.integers(1, 5),
        extra_tokens=st.integers(0, 12),
        model=st.sampled_from([next_token, looping_token]),
        speculate=st.sampled_from(list(DRAFTERS)),
        overlap_depth=st.integers(0, 1),
        num_sets=st.sampled_from([1, 1, 2, 3]),
        eos_token_ids=st.sampled_from([(), (3,)]),
        policy=st.sampled_from(["fcfs", "lpm"]),
        max_prefill_tokens=st.none() | st.integers(1, 8),
        kind=st.sampled_from(["tier", "tier", "states", "states", "windows", "pages"]),
        num_snapshots=st.integers(0, 6),
        min_gain_tokens=st.integers(1, 6),
        window=st.sampled_from([1, 3, 4, 9]),
    )
    def start(
        self,
        num_pages: int,
        page_size: int,
        max_running: int,
        extra_tokens: int,
        model: Model,
        speculate: str,
        overlap_depth: int,
        num_sets: int,
        eos_token_ids: tuple[int, ...],
        policy: SchedulePolicy,
        max_prefill_tokens: int | None,
        kind: str,
        num_snapshots: int,
        min_gain_tokens: int,
        window: int,
    ) -> None:
        """No guess may come by states, nor by sets of requests, which have pages alone."""
        if num_sets > 1:
            overlap_depth, kind, speculate = 0, "pages", "off"
        keeps_states = kind == "states"
        self.tier = FakeTier() if kind == "tier" else None
        self.stage = Stage(
            num_pages=num_pages,
            page_size=page_size,
            max_running=max_running,
            max_step_tokens=max_running + extra_tokens,
            max_context_len=MAX_CONTEXT_LEN,
            model=model,
            drafter=None if keeps_states else DRAFTERS[speculate](),
            overlap_depth=overlap_depth,
            num_sets=num_sets,
            eos_token_ids=eos_token_ids,
            policy=policy,
            max_prefill_tokens=max_prefill_tokens,
            snapshots=StateSnapshots(num_snapshots, min_gain_tokens) if keeps_states else None,
            window=window if kind == "windows" else None,
            tier=self.tier,
        )
        self.eos_token_ids = eos_token_ids

    @rule(
        prompt=st.lists(st.sampled_from([1, 2, NAN_TOKEN]), min_size=1, max_size=20),
        num_resumed=st.integers(0, 6),
        max_tokens=st.integers(1, 16),
        priority=st.integers(0, 2),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.0, 0.5]),
        namespace=st.sampled_from([b"", b"", b"a"]),
        num_choices=st.sampled_from([1, 1, 1, 3]),
        num_public=st.sampled_from([0, 0, 3, 8]),
    )
    def add(
        self,
        prompt: list[int],
        num_resumed: int,
        max_tokens: int,
        priority: int,
        frequency_penalty: float,
        namespace: bytes,
        num_choices: int,
        num_public: int,
    ) -> None:
        if num_public:  # behind declared text an empty namespace would mark nothing
            namespace = namespace or b"n"
        output = self._expected_output(prompt, min(num_resumed, max_tokens))
        for _ in range(num_choices):
            run_id = len(self.prompts)
            self.prompts[run_id] = prompt
            self.resumed[run_id] = len(output)
            self.max_tokens[run_id] = max_tokens
            self.namespaces[run_id] = namespace
            self.num_public[run_id] = min(num_public, len(prompt))
            self.stage.add(
                run_id,
                prompt,
                output,
                max_tokens=max_tokens,
                priority=priority,
                frequency_penalty=frequency_penalty,
                namespace=namespace,
                public=PublicPrefix(b"p", self.num_public[run_id]),
            )

    @precondition(lambda self: self.namespaces.keys() - self.pooled.keys())
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def add_next_turn(self, data: Any, num_tokens: int) -> None:
        """Behind what somebody has got so far."""
        run_id = data.draw(st.sampled_from(sorted(self.namespaces.keys() - self.pooled.keys())))
        prompt = [*self.prompts[run_id], *self.stage.tokens[run_id], *[1] * num_tokens]
        num_public = self.num_public[run_id]
        self.add(prompt, 0, 6, 0, 0.0, self.namespaces[run_id], 1, num_public)

    @rule(
        prompt=st.lists(st.sampled_from([1, 2, NAN_TOKEN]), min_size=1, max_size=30),
        kind=st.sampled_from(PoolingKind),
        priority=st.integers(0, 2),
    )
    def add_embedding(self, prompt: list[int], kind: PoolingKind, priority: int) -> None:
        run_id = len(self.prompts)
        self.prompts[run_id] = prompt
        self.pooled[run_id] = kind
        self.namespaces[run_id] = b""
        pooling = PoolingParams(kind)
        self.stage.add(run_id, prompt, max_tokens=0, priority=priority, pooling=pooling)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.prompts)))
        if run_id not in self.stage.finishes:
            self.aborted.setdefault(run_id, len(self.stage.tokens[run_id]))
        self.stage.scheduler.abort(run_id)

    @rule()
    def flush(self) -> None:
        self.stage.scheduler.flush_cache()

    @precondition(lambda self: self.tier is not None)
    @rule(
        data=st.data(),
        has_room=st.booleans(),
        is_hung=st.booleans(),
        wait_s=st.sampled_from([0, 9]),
    )
    def change_tier(self, data: Any, has_room: bool, is_hung: bool, wait_s: int) -> None:
        """It fills, hangs, and loses a page: whoever has waited for too long computes it."""
        assert self.tier is not None
        self.tier.has_room, self.tier.is_hung = has_room, is_hung
        self.stage.time_s += wait_s
        if self.tier.pages:
            self.tier.lost.add(data.draw(st.sampled_from(sorted(self.tier.pages))))

    @precondition(
        lambda self: self.tier is not None and self.namespaces.keys() - self.pooled.keys()
    )
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def come_back(self, data: Any, num_tokens: int) -> None:
        """When the pool has only what somebody holds: the rest comes from the tier."""
        self.stage.step()
        self.stage.scheduler.empty_pool()
        self.add_next_turn(data, num_tokens)

    @rule(num_steps=st.integers(1, 8))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.stage.step()

    @rule()
    def let_the_runner_run(self) -> None:
        """Before somebody waits for it."""
        if isinstance(self.stage.runner, DelayedRunner):
            self.stage.runner.let_run()

    @invariant()
    def books_agree(self) -> None:
        global num_steps_done
        num_steps_done += 1
        self.stage.scheduler.check_integrity()

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        """Counted from page tables, tree and free list alone."""
        ledger, scheduler = self.stage.ledger, self.stage.scheduler
        holders: dict[int, set[object]] = {page: set() for page in range(ledger.num_pages)}
        for page, is_free in enumerate(ledger.allocator._is_free):
            if is_free:
                holders[page].add("free")
        paths = {page: path for path, page in cached_prefixes(ledger.cache).items()}
        for page in ledger._spares:
            holders[page].add("spare")
        for page in paths:
            holders[page].add("cached")
        for req in (*scheduler._reqs.running, *scheduler._reqs.leaving):
            tokens = self._path(req)
            row = ledger.req_to_token.page_table[req.row].tolist()
            assert set(row[req.num_pages :]) <= {ledger.allocator.padding_page}
            for page in row[: req.num_pages]:
                if page in paths:
                    assert tokens.startswith(paths[page]), "a page of other tokens"
                else:
                    holders[page].add(req.run_id)
        assert all(len(who) == 1 for who in holders.values()), holders

    def _path(self, req: Req) -> bytes:
        """As the tree has it: a namespace, and behind the public pages another one."""
        tokens, public = req.token_ids.tobytes(), req.options.public
        num_public = 0 if public is None else self._num_public_pages(req.run_id)
        if public is None or not num_public:
            return req.options.namespace + tokens
        cut = num_public * self.stage.ledger.page_size * req.token_ids.itemsize
        return public.namespace + tokens[:cut] + req.options.namespace + tokens[cut:]

    def _num_public_pages(self, run_id: int) -> int:
        return self.num_public.get(run_id, 0) // self.stage.ledger.page_size

    def _may_share(self, run_id: int, other: int, num_tokens: int) -> bool:
        num_public, num_theirs = map(self._num_public_pages, (run_id, other))
        if num_tokens <= min(num_public, num_theirs) * self.stage.ledger.page_size:
            return True
        return (num_public, self.namespaces[run_id]) == (num_theirs, self.namespaces[other])

    def _check_cached_tokens(self, run_id: int, num_cached: int) -> None:
        """Somebody else whom it may share them with must have sent or got them."""
        if num_cached == 0:
            return
        assert num_cached % self.stage.ledger.page_size == 0 or num_cached == len(
            self.prompts[run_id]
        )
        assert any(
            [*self.prompts[other], *self.stage.tokens[other]][:num_cached]
            == self.prompts[run_id][:num_cached]
            for other in self.namespaces
            if other != run_id and self._may_share(run_id, other, num_cached)
        )

    @invariant()
    def budget_is_kept(self) -> None:
        assert self.stage.runner.max_tokens_seen <= self.stage.max_step_tokens

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.stage.runner.close()

    def _finish(self) -> None:
        if self.tier is not None:
            self.tier.is_hung = False
        self.stage.run()
        self.stage.scheduler.check_integrity()
        load = self.stage.scheduler.load()
        assert load.num_free_tokens == load.num_kv_tokens
        snapshots = self.stage.ledger.snapshots
        if snapshots is not None:
            assert snapshots.num_free + load.num_snapshots == snapshots.num_slots
        assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (0, 0, 0)
        for run_id in self.prompts:
            self._check_run(run_id)

    def _check_run(self, run_id: int) -> None:
        tokens = self.stage.tokens[run_id]
        prompt = self.prompts[run_id]
        assert tokens == self._expected_output(prompt, len(tokens))
        if run_id in self.aborted:
            assert len(tokens) == self.aborted[run_id]
            assert run_id not in self.stage.finishes
            return
        finish = self.stage.finishes[run_id]
        assert isinstance(finish, Finish)
        self._check_cached_tokens(run_id, finish.num_cached_tokens)
        if run_id in self.pooled:
            assert (finish.reason, finish.embedding) == self._expected_embedding(run_id)
            return
        assert (finish.reason, len(tokens)) == self._expected_end(run_id)

    def _expected_output(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Up to its end token, if it has one."""
        output = expected_output(prompt, num_tokens, self.stage.model)
        ends = [idx + 1 for idx, token_id in enumerate(output) if token_id in self.eos_token_ids]
        return output[: ends[0]] if ends else output

    def _expected_embedding(self, run_id: int) -> tuple[FinishReason, bytes]:
        prompt = self.prompts[run_id]
        limit = min(MAX_CONTEXT_LEN, self.stage.ledger.num_tokens)
        if len(prompt) > limit or prompt[-1] == NAN_TOKEN:
            return FinishReason.ERROR, b""
        return FinishReason.STOP, expected_embedding(self.pooled[run_id], prompt)

    def _expected_end(self, run_id: int) -> tuple[FinishReason, int]:
        prompt, num_resumed = self.prompts[run_id], self.resumed[run_id]
        kv_limit = self.stage.ledger.num_tokens
        num_held = len(prompt) + num_resumed
        if num_held > MAX_CONTEXT_LEN or num_held > kv_limit + (num_resumed > 0):
            return FinishReason.ERROR, num_resumed
        resumed = self._expected_output(prompt, num_resumed)
        if resumed and resumed[-1] in self.eos_token_ids:
            return FinishReason.STOP, num_resumed
        if num_resumed == self.max_tokens[run_id]:
            return FinishReason.LENGTH, num_resumed
        if num_resumed == 0 and prompt[-1] == NAN_TOKEN and len(prompt) < MAX_CONTEXT_LEN:
            return FinishReason.ERROR, 0
        room = min(MAX_CONTEXT_LEN, kv_limit + 1) - len(prompt)
        output = self._expected_output(prompt, min(self.max_tokens[run_id], room))
        has_end = bool(output) and output[-1] in self.eos_token_ids
        return FinishReason.STOP if has_end else FinishReason.LENGTH, len(output)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = stateful_settings(num_examples=120, num_steps=25)


@pytest.mark.skipif(not IS_DEEP, reason="make test-deep")
def test_the_deep_round_was_deep() -> None:
    print(f"{num_steps_done} steps of the scheduler left its books in order")
    assert num_steps_done > 100_000
