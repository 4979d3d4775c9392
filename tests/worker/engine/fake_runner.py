"""A model that is a hash, over a KV pool that is a dictionary and checks what is read."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.sampling import PoolingKind, PoolingParams, ThinkingBudget
from tests.worker.engine_fakes import make_add
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.cache.state_snapshots import StateSnapshots
from worker.engine.cache.window_pages import WindowPages, num_running_pages
from worker.engine.loop.step_pipeline import StepPipeline
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req, ReqStatus
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq, StateCopies
from worker.engine.request.step_result import DoneStep, SampleError, StepHandle, StepResult
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.scheduler import Scheduler, ScheduleRules
from worker.engine.schedule.tier_ledger import TierLedger
from worker.engine.schedule.waiting_queue import SchedulePolicy
from worker.engine.speculation.drafter import Drafter
from worker.engine.speculation.earlier_outputs import EarlierOutputs
from worker.engine.speculation.ngram_index import NgramIndex
from worker.engine.speculation.repetition_drafter import RepetitionDrafter
from worker.engine.speculation.suffix_index import SuffixIndex
from worker.engine.tiers.kv_tier import KVTier, PageContent, TierCounts

Model = Callable[[Sequence[int]], int]

VOCAB_SIZE = 50
NAN_TOKEN = 49  # a prompt that ends in it breaks the model


def ngram_drafter(num_draft_tokens: int, min_len: int, max_len: int) -> RepetitionDrafter:
    return RepetitionDrafter(num_draft_tokens, lambda: NgramIndex(min_len, max_len))


def suffix_drafter(
    num_draft_tokens: int, min_len: int, earlier: EarlierOutputs | None = None
) -> RepetitionDrafter:
    return RepetitionDrafter(num_draft_tokens, lambda: SuffixIndex(min_len), earlier)


def next_token(token_ids: Sequence[int]) -> int:
    """What the fake model says after these tokens: never NAN_TOKEN."""
    return zlib.crc32(bytes(token_ids)) % (VOCAB_SIZE - 1)


def looping_token(token_ids: Sequence[int]) -> int:
    """One of four, by the last two tokens alone, but for every seventh."""
    hiccup = b"!" if len(token_ids) % 7 == 0 else b""
    return zlib.crc32(bytes(token_ids[-2:]) + hiccup) % 4


class Namespaces(NamedTuple):
    """Of a request: that of its first `num_public` tokens, and what is its own behind them."""

    public: bytes
    num_public: int
    own: bytes


@dataclass(frozen=True)
class FakeEntry:
    """What a runner reads of an entry at launch."""

    req: Req
    run_id: int
    namespaces: Namespaces
    row: int
    start: int
    slots: list[int]  # of positions [0, end)
    seen_slots: dict[int, int]  # of layers with a window, by position: what its tokens see
    token_ids: list[int]  # the same; without the last one when that is awaited
    num_samples: int
    chooses_behind_awaited: bool


@dataclass(frozen=True)
class FakeStep:
    """A batch as it was at launch."""

    entries: list[FakeEntry]
    fresh_pages: list[int]
    fresh_window_pages: list[int]
    chooses_late: bool
    copies: StateCopies

    def choose(self) -> None:
        """Those whose choice depends on the token before it know that."""
        assert self.chooses_late
        for entry in self.entries:
            if entry.chooses_behind_awaited and entry.req.status is ReqStatus.RUNNING:
                assert entry.req.num_tokens == len(entry.slots)


class FakeRunner:
    """Writes each token's prefix into its slot, and finds every slot of a request as written.

    Also keeps a state of each row, the hash of all its tokens, and finds it there at each step.
    """

    def __init__(self, ledger: KVLedger, model: Model) -> None:
        self._ledger = ledger
        self._model = model
        self._slots: dict[int, int] = {}  # slot -> hash of the tokens up to it
        self._window_slots: dict[int, int] = {}  # the same
        self._last_token_ids: dict[int, int] = {}  # by row
        self._states: dict[int, int] = {}  # by row
        self._snapshots: dict[int, int] = {}  # states, by slot
        self.batches: list[list[tuple[int, int, int]]] = []  # (run_id, start, end) by step
        self.num_awaited = 0  # tokens that were not known at launch
        self.num_late = 0  # steps that chose when they were
        self.max_tokens_seen = 0

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        return DoneStep(self.compute(self.read(batch)))

    def close(self) -> None:
        """Nothing is computed afterwards."""

    def read(self, batch: ScheduleBatch) -> FakeStep:
        self.max_tokens_seen = max(self.max_tokens_seen, batch.num_tokens)
        self.batches.append([(each.req.run_id, each.start, each.end) for each in batch.entries])
        entries = [self._read_entry(entry) for entry in batch.entries]
        must_know = any(entry.chooses_behind_awaited for entry in entries)
        assert must_know == batch.chooses_late
        self.num_late += must_know
        pages, window_pages = batch.fresh_pages, list(batch.fresh_window_pages)
        return FakeStep(entries, pages, window_pages, batch.chooses_late, batch.copies)

    def compute(self, step: FakeStep) -> StepResult:
        self._wipe(self._slots, step.fresh_pages)
        self._wipe(self._window_slots, step.fresh_window_pages)
        for entry in step.entries:
            if len(entry.token_ids) < len(entry.slots):
                entry.token_ids.append(self._last_token_ids[entry.row])
                self.num_awaited += 1
            assert len(entry.token_ids) == len(entry.slots)
            for position in range(entry.start, len(entry.slots)):
                self._slots[entry.slots[position]] = _prefix_hash(entry, position)
                if entry.seen_slots:
                    self._window_slots[entry.seen_slots[position]] = _prefix_hash(entry, position)
        if self._ledger.planner is not None:
            self._go_on(step)
        for entry in step.entries:
            for position, slot in enumerate(entry.slots):
                assert self._slots.get(slot) == _prefix_hash(entry, position)
            for position, slot in entry.seen_slots.items():
                assert self._window_slots.get(slot) == _prefix_hash(entry, position)
        return StepResult(
            [token_id for entry in step.entries for token_id in self._sample(entry)],
            embeddings={
                entry.run_id: _pool(entry)
                for entry in step.entries
                if entry.req.pooling is not None
            },
        )

    @property
    def num_page_bytes(self) -> int:
        return self._ledger.page_size * 16

    def read_page(self, page: int, content: PageContent) -> None:
        """A number a slot, and whether it was written."""
        slots = range(page * self._ledger.page_size, (page + 1) * self._ledger.page_size)
        values = [(self._slots.get(slot, 0), slot in self._slots) for slot in slots]
        content.view(np.int64)[:] = np.array(values, np.int64).ravel()

    def write_page(self, page: int, content: PageContent) -> None:
        pairs = content.view(np.int64).reshape(-1, 2).tolist()
        for slot, (value, is_written) in enumerate(pairs, page * self._ledger.page_size):
            if is_written:
                self._slots[slot] = value

    def _go_on(self, step: FakeStep) -> None:
        """By the states of all rows."""
        for copy in step.copies.restored:
            self._states[copy.row] = self._snapshots[copy.snapshot]
        entries = {}
        for entry in step.entries:
            if entry.start:
                assert self._states[entry.row] == _prefix_hash(entry, entry.start - 1)
            self._states[entry.row] = _prefix_hash(entry, len(entry.slots) - 1)
            entries[entry.row] = entry
        for copy in step.copies.kept:
            entry = entries[copy.row]
            assert entry.start < copy.num_tokens <= len(entry.slots)
            assert copy.num_tokens % self._ledger.page_size == 0
            self._snapshots[copy.snapshot] = _prefix_hash(entry, copy.num_tokens - 1)

    def _read_entry(self, entry: ScheduledReq) -> FakeEntry:
        req = entry.req
        known_ids = req.token_ids[: min(entry.end, req.num_tokens)].tolist()
        return FakeEntry(
            req,
            req.run_id,
            _namespaces(req, self._ledger.page_size),
            req.row,
            entry.start,
            [
                _slot(self._ledger.req_to_token, req, position, self._ledger.page_size)
                for position in range(entry.end)
            ],
            self._seen_slots(entry),
            [*known_ids, *entry.draft_ids],
            entry.num_samples,
            entry.has_awaited_input and req.must_know_next,
        )

    def _sample(self, entry: FakeEntry) -> Iterator[int | SampleError]:
        for end in range(len(entry.slots) - entry.num_samples + 1, len(entry.slots) + 1):
            token_ids = entry.token_ids[:end]
            if token_ids[-1] == NAN_TOKEN:
                self._last_token_ids[entry.row] = 0
                yield SampleError.NOT_A_NUMBER
            else:
                self._last_token_ids[entry.row] = self._model(token_ids)
                yield self._last_token_ids[entry.row]

    def _seen_slots(self, entry: ScheduledReq) -> dict[int, int]:
        ledger = self._ledger
        if ledger.windows is None:
            return {}
        size = ledger.page_size
        table, window = ledger.windows.req_to_token, ledger.windows.pages._window
        return {
            position: _slot(table, entry.req, position, size)
            for position in range(max(0, entry.start - window + 1), entry.end)
        }

    def _wipe(self, slots: dict[int, int], pages: Sequence[int]) -> None:
        size = self._ledger.page_size
        for page in pages:
            for slot in range(page * size, (page + 1) * size):
                slots.pop(slot, None)


def _slot(table: ReqToTokenPool, req: Req, position: int, page_size: int) -> int:
    page = int(table.page_table[req.row, position // page_size])
    assert page != table.padding_page, "the padding page is not for writing"
    return page * page_size + position % page_size


def _namespaces(req: Req, page_size: int) -> Namespaces:
    """None is public unless a whole page is."""
    namespace, public = req.options.namespace, req.options.public
    num_pages = 0 if public is None else public.num_tokens // page_size
    if public is None or not num_pages:
        return Namespaces(b"", 0, namespace)
    return Namespaces(public.namespace, num_pages * page_size, namespace)


def _prefix_hash(entry: FakeEntry, position: int) -> int:
    public, num_public, own = entry.namespaces
    namespace = public if position < num_public else public + own
    return hash(namespace + bytes(entry.token_ids[: position + 1]))


class DelayedStep:
    """A step that a thread computes, not before it may."""

    def __init__(self, step: FakeStep) -> None:
        self.step = step
        self.may_run = threading.Event()
        self.may_choose = threading.Event()
        self.future: Future[StepResult] | None = None
        self.is_collected = False
        if not step.chooses_late:
            self.may_choose.set()

    def choose(self) -> None:
        assert not self.may_choose.is_set(), "it chooses once"
        self.step.choose()
        self.may_choose.set()

    def collect(self) -> StepResult:
        assert self.future is not None
        assert self.may_choose.is_set(), "it has not chosen"
        self.may_run.set()
        result = self.future.result()
        self.is_collected = True
        return result


class DelayedRunner(FakeRunner):
    """Computes in a thread, one step after the other, each when it is let or waited for."""

    def __init__(self, ledger: KVLedger, model: Model) -> None:
        super().__init__(ledger, model)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._launched: list[DelayedStep] = []  # not all of them collected
        self.max_in_flight = 0

    def launch(self, batch: ScheduleBatch) -> DelayedStep:
        delayed = DelayedStep(self.read(batch))
        self._launched = [each for each in self._launched if not each.is_collected]
        for other in self._launched:
            assert other.may_choose.is_set(), "launched behind a step that has not chosen"
            self._check_apart(delayed.step, other.step)
        self._launched.append(delayed)
        self.max_in_flight = max(self.max_in_flight, len(self._launched))
        delayed.future = self._thread.submit(self._compute_later, delayed)
        return delayed

    def let_run(self) -> None:
        """All that is launched may be computed now."""
        for delayed in self._launched:
            delayed.may_run.set()

    def close(self) -> None:
        for delayed in self._launched:
            delayed.may_choose.set()
        self.let_run()
        self._thread.shutdown()

    def _compute_later(self, delayed: DelayedStep) -> StepResult:
        delayed.may_run.wait()
        delayed.may_choose.wait()
        return self.compute(delayed.step)

    def _check_apart(self, step: FakeStep, in_flight: FakeStep) -> None:
        """What a step in flight uses is not given to somebody else."""
        size = self._ledger.page_size
        used_pages = {slot // size for entry in in_flight.entries for slot in entry.slots}
        assert used_pages.isdisjoint(step.fresh_pages)
        seen_slots = itertools.chain(*(entry.seen_slots.values() for entry in in_flight.entries))
        assert {slot // size for slot in seen_slots}.isdisjoint(step.fresh_window_pages)
        run_ids = {entry.row: entry.run_id for entry in in_flight.entries}
        for entry in step.entries:
            assert run_ids.get(entry.row, entry.run_id) == entry.run_id


def _pool(entry: FakeEntry) -> bytes | SampleError:
    """Of a mean the sum of the ids that came by: all of them, if none was skipped."""
    req, pooling = entry.req, entry.req.pooling
    assert pooling is not None
    if pooling.kind is PoolingKind.MEAN:
        before = 0 if entry.start == 0 or req.hidden_sum is None else req.hidden_sum
        req.hidden_sum = before + np.array(sum(entry.token_ids[entry.start :]), np.float32)
    if req.token_ids[-1] == NAN_TOKEN:
        return SampleError.NOT_A_NUMBER
    return expected_embedding(pooling.kind, list(req.token_ids), req.hidden_sum)


def expected_embedding(
    kind: PoolingKind, prompt_ids: Sequence[int], id_sum: npt.NDArray[np.float32] | None = None
) -> bytes:
    """What the fake model makes of a prompt; `id_sum` is what a mean has seen of it."""
    if kind is PoolingKind.LAST:
        return str(next_token(prompt_ids)).encode()
    return str(int(sum(prompt_ids) if id_sum is None else id_sum)).encode()


class FakeTier:
    """Pages in a dictionary, which arrive when they are let."""

    max_ordered = 3
    read_s: float | None = None
    write_s: float | None = None
    num_bytes = 0
    place = "here"

    def __init__(self) -> None:
        self.counts = TierCounts()
        self.not_seen: set[bytes] = set()  # pages of others, until somebody looks again
        self.pages: dict[bytes, PageContent] = {}
        self.lost: set[bytes] = set()  # what is not what was written, as is seen when it is read
        self.has_room = True
        self.is_hung = False
        self._orders: list[bytes] = []

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    def has(self, chain: bytes) -> bool:
        return chain in self.pages and chain not in self.not_seen

    is_known = has

    def find(self, chain: bytes) -> bool:
        self.not_seen.discard(chain)
        return self.has(chain)

    def put(self, chain: bytes, content: PageContent, used_ns: int) -> None:
        assert self.has_room
        assert chain not in self.pages
        self.pages[chain] = content

    def order(self, chain: bytes, used_ns: int) -> None:
        self._orders.append(chain)
        assert len(self._orders) <= self.max_ordered

    def take_arrived(self) -> list[PageContent | None]:
        if self.is_hung:
            return []
        arrived, self._orders = self._orders, []
        for chain in self.lost.intersection(arrived):
            self.pages.pop(chain, None)
        self.lost.difference_update(arrived)
        return [self.pages.get(chain) for chain in arrived]

    def clear(self) -> None:
        self.pages.clear()


class Stage:
    """A scheduler with a fake runner, and all that it put out."""

    def __init__(
        self,
        *,
        num_pages: int = 16,
        page_size: int = 4,
        max_running: int = 4,
        max_step_tokens: int = 16,
        max_context_len: int = 64,
        eos_token_ids: Sequence[int] = (),
        policy: SchedulePolicy = "fcfs",
        model: Model = next_token,
        drafter: Drafter | None = None,
        overlap_depth: int = 0,
        num_sets: int = 1,
        max_prefill_tokens: int | None = None,
        snapshots: StateSnapshots | None = None,
        window: int | None = None,
        tier: KVTier | None = None,
        writes_through: bool = False,
    ) -> None:
        windows = None
        if window is not None:
            num_window_pages = num_running_pages(window, page_size, max_running, max_step_tokens)
            windows = WindowPages(num_window_pages, page_size, window)
        self.ledger = KVLedger(
            num_pages,
            page_size,
            max_running,
            max_context_len,
            snapshots=snapshots,
            windows=windows,
        )
        overlap_depth = max(overlap_depth, num_sets - 1)
        runner_type = DelayedRunner if overlap_depth else FakeRunner
        self.runner = runner_type(self.ledger, model)
        self.time_s = 0.0
        self.token_s: float | None = None  # of computing one, as it is told
        self.tier = (
            None
            if tier is None
            else TierLedger(
                tier,
                self.runner,
                self.ledger,
                1,
                writes_through=writes_through,
                clock=lambda: self.time_s,
            )
        )
        self.scheduler = Scheduler(
            self.ledger,
            max_running,
            max_context_len,
            VOCAB_SIZE,
            ScheduleRules(policy, num_sets=num_sets),
            drafter=drafter,
            tier=self.tier,
        )
        self.max_step_tokens = max_step_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.model = model
        self.steps = StepPipeline(self.scheduler, self.runner, overlap_depth)
        self.stop_check = StopCheck(eos_token_ids, max_context_len)
        self.tokens: dict[int, list[int]] = {}
        self.finishes: dict[int, object] = {}
        self._num_arrivals = 0

    @property
    def batches(self) -> list[list[tuple[int, int, int]]]:
        """(run_id, start, end) by step."""
        return self.runner.batches

    def add(
        self,
        run_id: int,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
        *,
        max_tokens: int = 4,
        priority: int = 0,
        namespace: bytes = b"",
        arrived_at_s: float = 0.0,
        pooling: PoolingParams | None = None,
        frequency_penalty: float = 0.0,
        thinking: ThinkingBudget | None = None,
        public: PublicPrefix | None = None,
        seeks_pages: bool = False,
    ) -> Req:
        """Penalty and budget change no token here, but look at none before it is known."""
        command = make_add(
            run_id,
            prompt_ids,
            output_ids,
            priority=priority,
            namespace=namespace,
            pooling=pooling,
            public=public,
            max_tokens=max_tokens,
            frequency_penalty=frequency_penalty,
            thinking=thinking,
            seeks_pages=seeks_pages,
        )
        req = Req(Arrival(command, self._num_arrivals, arrived_at_s), self.stop_check)
        self._num_arrivals += 1
        self.tokens[run_id] = list(output_ids)
        self.scheduler.add(req)
        self._take_ended()
        return req

    def step(self) -> bool:
        """False when there was nothing to do."""
        self.scheduler.serve_tier(self.token_s)
        done = self.steps.advance(self.max_step_tokens, self.max_prefill_tokens)
        for output in done.outputs if done is not None else ():
            self._take(output.run_id, output.token_ids, output.finish)
        self._take_ended()
        self.scheduler.check_integrity()
        return done is not None or not self.steps.is_empty

    def run(self, max_steps: int = 10_000) -> None:
        while self.scheduler.has_work or not self.steps.is_empty:
            self.step()
            max_steps -= 1
            assert max_steps, "it does not come to an end"

    def _take_ended(self) -> None:
        for output in self.scheduler.take_ended():
            self._take(output.run_id, output.token_ids, output.finish)

    def _take(self, run_id: int, token_ids: list[int], finish: object) -> None:
        assert run_id not in self.finishes, "an output after the end"
        self.tokens[run_id] += token_ids
        if finish is not None:
            self.finishes[run_id] = finish


def expected_output(
    prompt_ids: Sequence[int], num_tokens: int, model: Model = next_token
) -> list[int]:
    token_ids = list(prompt_ids)
    for _ in range(num_tokens):
        token_ids.append(model(token_ids))
    return token_ids[len(prompt_ids) :]
