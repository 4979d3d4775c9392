"""The KV ledger against a model of it that is two dictionaries and a set."""

from __future__ import annotations

import array
import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.protocol.request import KeepPrefix
from tests.worker.engine.depth import IS_DEEP, stateful_settings
from tests.worker.engine_fakes import make_add
from worker.engine.cache.radix_cache import RadixCache
from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.window_pages import WindowPages
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
    num_known: int = 0  # that were cached when it began
    seen: dict[int, int] = field(default_factory=dict)  # pages of layers with a window, by index


class WindowModel:
    """Of layers with a window: free pages, cached ones by prefix, and in which order they go."""

    def __init__(self, num_pages: int, page_size: int, window: int) -> None:
        self.num_pages = num_pages
        self.free = set(range(num_pages))
        self.cached: dict[bytes, int] = {}
        self.queue: list[bytes] = []  # of these, those that no run sees
        self._page_size = page_size
        self._window = window

    def is_seen(self, idx: int, num_pages: int) -> bool:
        """Whether a page has a token that the one behind so many pages sees."""
        next_position = num_pages * self._page_size
        return idx < num_pages and next_position - ((idx + 1) * self._page_size - 1) < self._window

    def push(self, prefix: bytes, *, is_last: bool = True) -> None:
        if prefix in self.queue:
            self.queue.remove(prefix)
        self.queue.insert(len(self.queue) if is_last else 0, prefix)

    def drop(self, prefix: bytes) -> None:
        if prefix in self.cached:
            self.queue.remove(prefix)
            self.free.add(self.cached.pop(prefix))

    def make_free(self, num_pages: int, pinned: Collection[bytes]) -> None:
        while len(self.free) < num_pages:
            if any(prefix not in pinned for prefix in self.queue):
                while self.queue[0] in pinned:
                    self.queue.append(self.queue.pop(0))
            self.drop(self.queue[0])


class KVModel:
    """Free pages, cached pages by the whole prefix that they end, and the pages of each run."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        max_pins: int = 0,
        windows: WindowModel | None = None,
    ) -> None:
        self.windows = windows
        self.max_pins = max_pins
        self.pins: dict[bytes, float] = {}  # prefix -> until; the one pinned last is the last
        self.time_s = 0.0
        self.page_size = page_size
        self.free = set(range(num_pages))
        self.cached: dict[bytes, CachedPage] = {}
        self.runs: dict[int, ModelRun] = {}
        self.now = 0
        self.num_known = 0  # pages that the last look-up found in all

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
        self.num_known = len(pages)
        if self.windows is not None:
            del pages[self._num_usable(self.windows, req, len(pages)) :]
        return pages

    def _num_usable(self, windows: WindowModel, req: Req, num_known: int) -> int:
        prefixes = [self.prefix(req, idx + 1) for idx in range(num_known)]
        num_usable = max(
            border
            for border in range(num_known + 1)
            if all(
                prefix in windows.cached
                for idx, prefix in enumerate(prefixes)
                if windows.is_seen(idx, border)
            )
        )
        for idx, prefix in enumerate(prefixes):
            if windows.is_seen(idx, num_usable) and prefix in windows.queue:
                windows.push(prefix)
        return num_usable

    def start(self, req: Req) -> None:
        pages = self.look_up(req)
        run = ModelRun(req, len(pages), pages, self.num_known)
        self.runs[req.run_id] = run
        if self.windows is None:
            return
        for idx in range(len(pages)):
            prefix = self.prefix(req, idx + 1)
            if self.windows.is_seen(idx, len(pages)):
                run.seen[idx] = self.windows.cached[prefix]
                if prefix in self.windows.queue:
                    self.windows.queue.remove(prefix)

    def slide(self, run: ModelRun) -> None:
        """What no token to come sees is given up."""
        windows = self.windows
        if windows is None:
            return
        num_pages = run.req.num_computed // self.page_size
        for idx in sorted(run.seen):
            if idx < num_pages and not windows.is_seen(idx, num_pages):
                borders = self.borders(run)
                is_wanted = any(windows.is_seen(idx, border) for border in borders)
                self.let_go(windows, run, idx, is_wanted=is_wanted)

    def let_go(self, windows: WindowModel, run: ModelRun, idx: int, *, is_wanted: bool) -> None:
        page = run.seen.pop(idx)
        if idx >= run.num_held:
            windows.free.add(page)
        elif not any(page in other.seen.values() for other in self.runs.values()):
            windows.push(self.prefix(run.req, idx + 1), is_last=is_wanted)

    def borders(self, run: ModelRun) -> set[int]:
        """Where others may go on, as far as it was known when it began."""
        num_prompt, keep = run.req.num_prompt_tokens, run.req.options.keep
        borders = {(num_prompt - 1) // self.page_size, run.num_known}
        if keep is not None:
            borders.add(min(keep.num_tokens or num_prompt, num_prompt) // self.page_size)
        return borders

    def num_window_pages(self) -> int:
        assert self.windows is not None
        return len(self.windows.free) + len(self.windows.queue)

    def num_available(self) -> int:
        return len(self.free) + len(self.cached.keys() - self.held)

    def take_window_pages(self, run: ModelRun, new_pages: dict[int, int]) -> None:
        """By index."""
        if self.windows is None:
            return
        self.windows.make_free(len(new_pages), self.pins_in_force())
        assert self.windows.free.issuperset(new_pages.values())
        self.windows.free -= set(new_pages.values())
        run.seen |= new_pages

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
        if self.windows is not None:
            self.windows.drop(prefix)
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
            if self.windows is not None and idx in run.seen:
                self.cache_window_page(self.windows, run, idx)
        run.num_held = end

    def cache_window_page(self, windows: WindowModel, run: ModelRun, idx: int) -> None:
        prefix, page = self.prefix(run.req, idx + 1), run.seen[idx]
        run.seen[idx] = windows.cached.setdefault(prefix, page)
        if run.seen[idx] != page:
            windows.free.add(page)
        if prefix in windows.queue:
            windows.queue.remove(prefix)

    def end(self, run: ModelRun, *, keep: bool) -> None:
        if keep:
            self.commit(run)
            self.slide(run)
        if self.windows is not None:
            for idx in sorted(run.seen):
                self.let_go(self.windows, run, idx, is_wanted=True)
        if keep and run.req.options.keep is not None:
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
        window=st.sampled_from([None, 1, 2, 3, 4, 6]),
        num_window_pages=st.integers(2, 12),
    )
    def begin(
        self,
        num_pages: int,
        page_size: int,
        num_rows: int,
        share: float,
        window: int | None,
        num_window_pages: int,
    ) -> None:
        pages = model = None
        if window is not None:
            pages = WindowPages(num_window_pages, page_size, window)
            model = WindowModel(num_window_pages, page_size, window)
        self.ledger = KVLedger(
            num_pages, page_size, num_rows, MAX_LEN, share, self._clock, windows=pages
        )
        self.model = KVModel(num_pages, page_size, int(num_pages * share), model)

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

    @precondition(lambda self: self.ledger.num_free_rows)
    @rule(prompt=PROMPTS, chunk=st.integers(1, 5), ends=st.booleans(), keep=KEEPS)
    def serve(self, prompt: list[int], chunk: int, ends: bool, keep: KeepPrefix | None) -> None:
        """A whole prefill, and perhaps no more."""
        self.start(prompt, b"", keep)
        run = self.model.runs[self.num_runs]
        for _ in prompt:
            self._compute(run, chunk, commits=True)
        if ends:
            self._end(run, keep=True)

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
        self._compute(self._any_run(data), num_tokens, commits=commits)

    def _compute(self, run: ModelRun, num_tokens: int, *, commits: bool) -> None:
        req = run.req
        if req.num_computed == req.num_tokens and req.num_tokens < MAX_LEN:
            req.append(num_tokens % 3)
        end = min(req.num_tokens, req.num_computed + num_tokens)
        num_new = -(-end // self.ledger.page_size) - len(run.pages)
        if num_new > self.model.num_available() or -(-end // self.ledger.page_size) > (
            self.ledger.req_to_token.max_pages
        ):
            return
        if self.ledger.windows is not None:
            self.ledger.windows.slide(req)
            self.model.slide(run)
            if num_new > self.model.num_window_pages():
                return
        self.ledger.extend(req, end)
        row_pages = self._row_pages(req)
        assert row_pages[: len(run.pages)] == run.pages
        seen = self._seen_pages(req)
        new_seen = {idx: seen[idx] for idx in range(len(run.pages), len(row_pages)) if seen}
        self.model.take(run, row_pages[len(run.pages) :])
        self.model.take_window_pages(run, new_seen)
        req.num_computed = end
        if commits:
            self.ledger.commit(req)
            self.model.commit(run)
            self.model.slide(run)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: Any, keep: bool) -> None:
        """A finish or an abort; and what a retraction does with its pages."""
        self._end(self._any_run(data), keep=keep)

    def _end(self, run: ModelRun, *, keep: bool) -> None:
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
            assert self._seen_pages(run.req) == run.seen
        if ledger.windows is not None and model.windows is not None:
            allocator = ledger.windows.pages.allocator
            assert model.windows.free == {
                page for page in range(model.windows.num_pages) if allocator.is_free(page)
            }
            assert window_prefixes(ledger.cache) == {
                prefix.replace(b"|", b"", 1): page for prefix, page in model.windows.cached.items()
            }

    def _seen_pages(self, req: Req) -> dict[int, int]:
        """By index: all entries but those of padding."""
        if self.ledger.windows is None:
            return {}
        row = self.ledger.windows.req_to_token.page_table[req.row].tolist()
        padding_page = self.ledger.windows.req_to_token.padding_page
        return {idx: page for idx, page in enumerate(row) if page != padding_page}

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
        if self.ledger.windows is not None:
            allocator = self.ledger.windows.pages.allocator
            assert allocator.num_free == allocator.num_pages


def cached_prefixes(cache: RadixCache) -> dict[bytes, int]:
    return {prefix: node.page for prefix, node in nodes_by_prefix(cache).items()}


def window_prefixes(cache: RadixCache) -> dict[bytes, int]:
    return {
        prefix: node.window_page
        for prefix, node in nodes_by_prefix(cache).items()
        if node.window_page is not None
    }


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
