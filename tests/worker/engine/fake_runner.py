"""A model that is a hash, over a KV pool that is a dictionary and checks what is read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from shared.protocol import PoolingKind, PoolingParams, SamplingParams
from worker.engine.admission_order import SchedulePolicy
from worker.engine.kv.kv_ledger import KVLedger
from worker.engine.req import Req
from worker.engine.sampling.sample_error import SampleError
from worker.engine.sampling.sample_point import SamplePoint
from worker.engine.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.scheduler import Scheduler
from worker.engine.speculation.ngram_drafter import NgramDrafter
from worker.engine.step_result import DoneStep, StepResult
from worker.engine.stop_check import StopCheck

Model = Callable[[Sequence[int]], int]

VOCAB_SIZE = 50
NAN_TOKEN = 49  # a prompt that ends in it breaks the model


def next_token(token_ids: Sequence[int]) -> int:
    """What the fake model says after these tokens: never NAN_TOKEN."""
    return zlib.crc32(bytes(token_ids)) % (VOCAB_SIZE - 1)


def looping_token(token_ids: Sequence[int]) -> int:
    """One of four, by the last two tokens alone, but for every seventh."""
    hiccup = b"!" if len(token_ids) % 7 == 0 else b""
    return zlib.crc32(bytes(token_ids[-2:]) + hiccup) % 4


class FakeRunner:
    """Writes each token's prefix into its slot, and finds every slot of a request as written."""

    def __init__(self, ledger: KVLedger, model: Model) -> None:
        self._ledger = ledger
        self._model = model
        self._slots: dict[int, int] = {}  # slot -> hash of the tokens up to it
        self.num_steps = 0
        self.max_tokens_seen = 0

    def launch(self, batch: ScheduleBatch) -> DoneStep:
        self.num_steps += 1
        self.max_tokens_seen = max(self.max_tokens_seen, batch.num_tokens)
        self._wipe(batch.fresh_pages)
        for entry in batch.entries:
            for position in range(entry.start, entry.end):
                self._slots[self._slot(entry.req, position)] = _prefix_hash(entry, position)
        for entry in batch.entries:
            for position in range(entry.end):
                slot = self._slot(entry.req, position)
                assert self._slots.get(slot) == _prefix_hash(entry, position)
        return DoneStep(
            StepResult(
                [_sample(point, self._model) for point in batch.sample_points],
                embeddings={
                    entry.req.run_id: _pool(entry)
                    for entry in batch.entries
                    if entry.req.pooling is not None
                },
            )
        )

    def _wipe(self, pages: Sequence[int]) -> None:
        size = self._ledger.page_size
        for page in pages:
            for slot in range(page * size, (page + 1) * size):
                self._slots.pop(slot, None)

    def _slot(self, req: Req, position: int) -> int:
        size = self._ledger.page_size
        page = int(self._ledger.req_to_token.page_table[req.row, position // size])
        assert page < self._ledger.num_pages, "the padding page is not for writing"
        return page * size + position % size


def _prefix_hash(entry: ScheduledReq, position: int) -> int:
    token_ids = [*entry.req.token_ids, *entry.draft_ids]
    return hash(entry.req.namespace + bytes(token_ids[: position + 1]))


def _sample(point: SamplePoint, model: Model) -> int | SampleError:
    token_ids = [*point.req.token_ids, *point.draft_ids]
    assert len(token_ids) == point.position
    is_broken = token_ids[-1] == NAN_TOKEN
    return SampleError.NOT_A_NUMBER if is_broken else model(token_ids)


def _pool(entry: ScheduledReq) -> bytes | SampleError:
    """Of a mean the sum of the ids that came by: all of them, if none was skipped."""
    req, pooling = entry.req, entry.req.pooling
    assert pooling is not None
    if pooling.kind is PoolingKind.MEAN:
        before = 0 if entry.start == 0 or req.hidden_sum is None else req.hidden_sum
        req.hidden_sum = before + np.array(sum(entry.input_ids), np.float32)
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
        drafter: NgramDrafter | None = None,
    ) -> None:
        self.ledger = KVLedger(num_pages, page_size, max_running, max_context_len)
        self.scheduler = Scheduler(
            self.ledger, max_running, max_context_len, VOCAB_SIZE, policy, drafter=drafter
        )
        self.max_step_tokens = max_step_tokens
        self.model = model
        self.runner = FakeRunner(self.ledger, model)
        self.stop_check = StopCheck(eos_token_ids, max_context_len)
        self.tokens: dict[int, list[int]] = {}
        self.finishes: dict[int, object] = {}
        self.batches: list[list[tuple[int, int, int]]] = []  # (run_id, start, end) by step
        self._num_arrivals = 0

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
    ) -> Req:
        sampling = SamplingParams(max_tokens=max_tokens, seed=0)
        req = Req(
            run_id,
            prompt_ids,
            output_ids,
            sampling,
            priority,
            self._num_arrivals,
            self.stop_check,
            namespace,
            arrived_at_s,
            None,
            pooling,
        )
        self._num_arrivals += 1
        self.tokens[run_id] = list(output_ids)
        self.scheduler.add(req)
        self._take_ended()
        return req

    def step(self) -> bool:
        """False when there was nothing to do."""
        batch = self.scheduler.next_batch(self.max_step_tokens)
        if batch is not None:
            self.batches.append([(each.req.run_id, each.start, each.end) for each in batch.entries])
            result = self.runner.launch(batch).collect()
            for output in self.scheduler.process(batch, result):
                self._take(output.run_id, output.token_ids, output.finish)
        self._take_ended()
        self.scheduler.check_integrity()
        return batch is not None

    def run(self, max_steps: int = 10_000) -> None:
        while self.scheduler.has_work:
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
