"""The KV ledger against a model of it that is two dictionaries and a set."""

from __future__ import annotations

import array
import heapq
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.protocol.request import KeepPrefix
from tests.worker.engine.depth import IS_DEEP, stateful_settings
from tests.worker.engine_fakes import make_add
from worker.engine.cache.radix_cache import RadixCache
from worker.engine.cache.radix_node import RadixNode
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.kv_ledger import KVLedger

MAX_LEN = 24
STOP_CHECK = StopCheck((), MAX_LEN)
PROMPTS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=12)
NAMESPACES = st.sampled_from([b"", b"a", b"b"])
KEEPS = st.none() | st.builds(KeepPrefix, st.integers(1, 9), st.integers(0, 9))

num_steps_done = 0


def make_req(
    number: int, prompt: list[int], namespace: bytes = b"", keep: KeepPrefix | None = None
) -> Req:
    command = make_add(number, prompt, namespace=namespace, keep=keep, max_tokens=MAX_LEN)
    return Req(Arrival(command, number), STOP_CHECK)


@dataclass
class CachedPage:
    page: int
    used_at: int


@dataclass
class ModelRun:
    req: Req
    num_held: int  # pages of the cache
    pages: list[int]  # all of them, in order


class KVModel:
    """Free pages, cached pages by the whole prefix that they end, and the pages of each run."""

    def __init__(self, num_pages: int, page_size: int, max_pins: int = 0) -> None:
        self.max_pins = max_pins
        self.pins: dict[bytes, float] = {}  # prefix -> until; the one pinned last is the last
        self.time_s = 0.0
        self.page_size = page_size
        self.free = set(range(num_pages))
        self.cached: dict[bytes, CachedPage] = {}
        self.runs: dict[int, ModelRun] = {}
        self.now = 0

    def prefix(self, req: Req, num_pages: int) -> bytes:
        return req.options.namespace + b"|" + req.token_ids[: num_pages * self.page_size].tobytes()

    @property
    def held(self) -> set[bytes]:
        return {
            self.prefix(run.req, idx + 1)
            for run in self.runs.values()
            for idx in range(run.num_held)
        }

    def look_up(self, req: Req) -> list[int]:
        self.now += 1
        pages: list[int] = []
        for idx in range((len(req.token_ids) - 1) // self.page_size):
            found = self.cached.get(self.prefix(req, idx + 1))
            if found is None:
                break
            found.used_at = self.now
            pages.append(found.page)
        return pages

    def start(self, req: Req) -> None:
        pages = self.look_up(req)
        self.runs[req.run_id] = ModelRun(req, len(pages), pages)

    def num_available(self) -> int:
        return len(self.free) + len(self.cached.keys() - self.held)

    def take(self, run: ModelRun, new_pages: list[int]) -> None:
        while len(self.free) < len(new_pages):
            self.evict_one()
        assert set(new_pages) <= self.free, "pages that were not free"
        self.free -= set(new_pages)
        run.pages += new_pages

    def evict_one(self) -> None:
        held = self.held
        leaves = [
            prefix
            for prefix in self.cached
            if prefix not in held
            and not any(each.startswith(prefix) and each != prefix for each in self.cached)
        ]
        pins = self.pins_in_force()
        oldest = min(leaves, key=lambda prefix: (prefix in pins, self.cached[prefix].used_at))
        self._drop(oldest)

    def _drop(self, prefix: bytes) -> None:
        self.free.add(self.cached.pop(prefix).page)
        self.pins.pop(prefix, None)

    def pins_in_force(self) -> dict[bytes, float]:
        return {prefix: until for prefix, until in self.pins.items() if until > self.time_s}

    def pin(self, run: ModelRun, keep: KeepPrefix) -> None:
        num_tokens = min(keep.num_tokens or run.req.num_prompt_tokens, run.req.num_prompt_tokens)
        num_pages = min(num_tokens // self.page_size, run.num_held, self.max_pins)
        self.pins = self.pins_in_force()
        for idx in reversed(range(num_pages)):
            prefix = self.prefix(run.req, idx + 1)
            self.pins[prefix] = max(self.pins.pop(prefix, 0.0), self.time_s + keep.seconds)
        while len(self.pins) > self.max_pins:
            del self.pins[next(iter(self.pins))]

    def commit(self, run: ModelRun) -> None:
        end = run.req.num_computed // self.page_size
        if run.num_held >= end:
            return
        self.now += 1
        for idx in range(run.num_held, end):
            found = self.cached.setdefault(
                self.prefix(run.req, idx + 1), CachedPage(run.pages[idx], self.now)
            )
            found.used_at = self.now
            if found.page != run.pages[idx]:
                self.free.add(run.pages[idx])
                run.pages[idx] = found.page
        run.num_held = end

    def end(self, run: ModelRun, *, keep: bool) -> None:
        if keep:
            self.commit(run)
            if run.req.options.keep is not None:
                self.pin(run, run.req.options.keep)
        self.free |= set(run.pages[run.num_held :])
        del self.runs[run.req.run_id]

    def flush(self) -> None:
        for prefix in self.cached.keys() - self.held:
            self._drop(prefix)


class KVLedgerMachine(RuleBasedStateMachine):
    """Two token values, small pools: prefixes collide, pages run out."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KVLedger(1, 1, 1, 1)
        self.model = KVModel(1, 1)
        self.num_runs = 0

    @initialize(
        num_pages=st.integers(2, 16),
        page_size=st.integers(1, 3),
        num_rows=st.integers(1, 4),
        share=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def begin(self, num_pages: int, page_size: int, num_rows: int, share: float) -> None:
        self.ledger = KVLedger(num_pages, page_size, num_rows, MAX_LEN, share, self._clock)
        self.model = KVModel(num_pages, page_size, int(num_pages * share))

    def _clock(self) -> float:
        return self.model.time_s

    @rule(seconds=st.integers(1, 5))
    def pass_time(self, seconds: int) -> None:
        self.model.time_s += seconds

    @precondition(lambda self: self.ledger.num_free_rows)
    @rule(prompt=PROMPTS, namespace=NAMESPACES, keep=KEEPS)
    def start(self, prompt: list[int], namespace: bytes, keep: KeepPrefix | None) -> None:
        self.num_runs += 1
        number = self.num_runs
        req = make_req(number, prompt, namespace, keep)
        self.ledger.attach(req, self.ledger.match(req))
        self.model.start(req)
        run = self.model.runs[req.run_id]
        assert req.num_cached_tokens == len(run.pages) * self.ledger.page_size

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def look_up(self, prompt: list[int], namespace: bytes) -> None:
        """Somebody who waits: a use, but no hold."""
        req = make_req(0, prompt, namespace)
        assert self.ledger.match(req).pages == self.model.look_up(req)

    @precondition(lambda self: self.model.runs and self.ledger.num_free_rows)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        """Another choice of the same prompt."""
        req = self._any_run(data).req
        prompt = req.token_ids[: req.num_prompt_tokens].tolist()
        self.start(prompt, req.options.namespace, req.options.keep)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), num_tokens=st.integers(1, 8), commits=st.booleans())
    def compute(self, data: Any, num_tokens: int, commits: bool) -> None:
        """A chunk of prefill, or a token that was made just now."""
        run = self._any_run(data)
        req = run.req
        if req.num_computed == req.num_tokens and req.num_tokens < MAX_LEN:
            req.append(num_tokens % 3)
        end = min(req.num_tokens, req.num_computed + num_tokens)
        num_new = -(-end // self.ledger.page_size) - len(run.pages)
        if num_new > self.model.num_available() or -(-end // self.ledger.page_size) > (
            self.ledger.req_to_token.max_pages
        ):
            return
        self.ledger.extend(req, end)
        row_pages = self._row_pages(req)
        assert row_pages[: len(run.pages)] == run.pages
        self.model.take(run, row_pages[len(run.pages) :])
        req.num_computed = end
        if commits:
            self.ledger.commit(req)
            self.model.commit(run)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: Any, keep: bool) -> None:
        """A finish or an abort; and what a retraction does with its pages."""
        run = self._any_run(data)
        self.model.end(run, keep=keep)
        self.ledger.release(run.req, keep=keep)

    @rule(num_pages=st.integers(1, 3))
    def evict(self, num_pages: int) -> None:
        """As for somebody who needs so many."""
        num_evictable = self.model.num_available() - len(self.model.free)
        self.ledger.cache.end_pins(self.model.time_s)
        pages = self.ledger.cache.evict(num_pages)
        assert len(pages) == min(num_pages, num_evictable)
        for page in pages:
            self.model.evict_one()
            assert page in self.model.free, "not the one that was used longest ago"
        self.ledger.allocator.free(pages)

    @rule(luck=st.integers(0, 9))
    def flush(self, luck: int) -> None:
        """Seldom: what an empty cache does is soon known."""
        if luck == 0:
            self._flush()

    def _flush(self) -> None:
        self.ledger.flush()
        self.model.flush()

    @invariant()
    def equals_the_model(self) -> None:
        global num_steps_done
        num_steps_done += 1
        ledger, model = self.ledger, self.model
        ledger.check_integrity([run.req for run in model.runs.values()])
        free = {page for page in range(ledger.num_pages) if ledger.allocator.is_free(page)}
        assert free == model.free
        assert cached_prefixes(ledger.cache) == {
            prefix.replace(b"|", b"", 1): cached.page for prefix, cached in model.cached.items()
        }
        assert ledger.num_available_pages == model.num_available()
        assert pinned_prefixes(ledger.cache, model.time_s) == {
            prefix.replace(b"|", b"", 1): until for prefix, until in model.pins_in_force().items()
        }
        for run in model.runs.values():
            assert self._row_pages(run.req) == run.pages
            assert run.req.num_cached_pages == run.num_held

    def _row_pages(self, req: Req) -> list[int]:
        return self.ledger.req_to_token.read_pages(req.row, 0, req.num_pages)

    def _any_run(self, data: Any) -> ModelRun:
        return self.model.runs[data.draw(st.sampled_from(sorted(self.model.runs)))]

    def teardown(self) -> None:
        for run in list(self.model.runs.values()):
            self.model.end(run, keep=True)
            self.ledger.release(run.req)
        self._flush()
        assert self.ledger.allocator.num_free == self.ledger.num_pages
        assert self.ledger.num_pinned_tokens() == 0


def cached_prefixes(cache: RadixCache) -> dict[bytes, int]:
    return {prefix: node.page for prefix, node in nodes_by_prefix(cache).items()}


def pinned_prefixes(cache: RadixCache, now: float) -> dict[bytes, float]:
    return {
        prefix: node.pinned_until
        for prefix, node in nodes_by_prefix(cache).items()
        if node.pinned_until > now
    }


def nodes_by_prefix(cache: RadixCache) -> dict[bytes, RadixNode]:
    prefixes: dict[bytes, RadixNode] = {}
    stack = [(cache.root, b"")]
    while stack:
        node, prefix = stack.pop()
        for child in node.children.values():
            stack.append((child, prefix + child.key))
            prefixes[prefix + child.key] = child
    return prefixes


TestKVLedger = KVLedgerMachine.TestCase
TestKVLedger.settings = stateful_settings(num_examples=150, num_steps=30)


@pytest.mark.skipif(not IS_DEEP, reason="make test-deep")
def test_the_deep_round_was_deep() -> None:
    print(f"{num_steps_done} steps of the KV ledger equalled the model")
    assert num_steps_done > 100_000


def test_an_eviction_looks_at_no_more_entries_than_were_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_pops = 0

    def counting_pop(heap: list[Any]) -> Any:
        nonlocal num_pops
        num_pops += 1
        return heappop(heap)

    heappop = heapq.heappop
    num_leaves = 5000
    cache = RadixCache(page_size=1)
    keys = [array.array("I", [idx]).tobytes() for idx in range(num_leaves)]
    for page, key in enumerate(keys):
        cache.lock(cache.root)
        cache.unlock(cache.extend_lock(cache.root, [key], [page]).node)
    for _ in range(10):  # uses cost no entry in the heap
        for key in keys[:100]:
            cache.match([key])
    monkeypatch.setattr(heapq, "heappop", counting_pop)
    assert cache.evict(10) == list(range(100, 110))
    assert num_pops == 110
    assert cache.evict(1000) == list(range(110, 1110))
    assert num_pops == 1110
