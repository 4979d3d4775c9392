"""`make bench-host`: what a step costs the engine's host, beside the model.

Scheduler, books and tensors are the engine's own; model, attention and sampler answer at once with
precomputed values. Prints milliseconds a step, by part: next_batch (schedule), the tensors of model
and sampler (build), what becomes of the tokens (process), and the load that each step reports.
Times are CPU time of the thread. Then the same with the runner of a GPU, which plans, stages and
samples in its own way; what only a GPU's driver does is missing. Also what adding and aborting
costs beside a long waiting list.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import cyclopts
import torch

from bench.instant_gpu import make_instant_gpu
from shared.cli.garbage import settle_garbage
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import ModelRunner
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.step_result import BatchRunner
from worker.engine.request.stop_check import StopCheck
from worker.engine.sampling.sampler import Samples
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.scheduler import Scheduler
from worker.engine_link.engine_messages import AddRequest, RunOptions

VOCAB_SIZE = 32_000
PAGE_SIZE = 16
PROMPT_LEN = 128
MAX_CONTEXT_LEN = 4096
STOP_CHECK = StopCheck([2], MAX_CONTEXT_LEN)


class InstantForward:
    """Hidden states and logits of nothing; with the sampler below it takes no time."""

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        return torch.empty((len(batch.input_ids), 1))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        return {}


class InstantSampler:
    """One token for each row: never an end."""

    def forward(self, logits: torch.Tensor, batch: SamplingBatch) -> Samples:
        return Samples([7] * len(batch.positions), [])


@dataclass
class StepTimes:
    """Milliseconds by part, one value a step."""

    parts: dict[str, list[float]]

    @property
    def totals(self) -> list[float]:
        return [sum(each) for each in zip(*self.parts.values(), strict=True)]

    def row(self) -> str:
        medians = [f"{statistics.median(values):8.3f}" for values in self.parts.values()]
        totals = sorted(self.totals)
        p99 = totals[int(len(totals) * 0.99)]
        return f"{' '.join(medians)} {statistics.median(totals):8.3f} {p99:8.3f}"


def make_instant_cpu(ledger: KVLedger) -> BatchRunner:
    layout = KVLayout.of([AttentionLayer(1, 1, 1, 1.0)], torch.float32, PAGE_SIZE)
    pool = KVCachePool(layout, ledger.num_pages)
    runner = ModelRunner(InstantForward(), pool, ledger.page_tables, VOCAB_SIZE)
    runner._sampler = InstantSampler()  # type: ignore[assignment]
    return runner


class HostRig:
    """An engine whose model takes no time."""

    def __init__(
        self, num_pages: int, max_tokens: int, max_running: int, *, on_gpu: bool = False
    ) -> None:
        self.max_tokens = max_tokens
        self.ledger = KVLedger(num_pages, PAGE_SIZE, max_running, MAX_CONTEXT_LEN)
        self.scheduler = Scheduler(self.ledger, max_running, MAX_CONTEXT_LEN, VOCAB_SIZE)
        self.runner: BatchRunner = (
            make_instant_gpu(self.ledger, VOCAB_SIZE) if on_gpu else make_instant_cpu(self.ledger)
        )
        self._prompts = _prompts()
        self.num_added = 0

    def add(self, num_reqs: int) -> None:
        for _ in range(num_reqs):
            is_random = self.num_added % 2 == 1
            sampling = SamplingParams(
                max_tokens=self.max_tokens,
                seed=self.num_added,
                temperature=0.7 if is_random else 0.0,
                top_p=0.9 if is_random else 1.0,
            )
            idx = self.num_added
            prompt = next(self._prompts)[: PROMPT_LEN - idx % PAGE_SIZE]
            run = AddRequest(
                run_id=idx,
                prompt_ids=pack_token_ids(prompt),
                options=RunOptions(sampling=sampling),
            )
            self.scheduler.add(Req(Arrival(run, idx), STOP_CHECK))
            self.num_added += 1

    def fill(self, num_rows: int) -> None:
        """So many requests decode."""
        self.add(num_rows)
        self.scheduler._reserve_ratio.value = 0.0
        self.step(budget=num_rows * PROMPT_LEN)
        assert all(req.is_decoding for req in self.scheduler._reqs.running)

    def step(self, times: StepTimes | None = None, *, budget: int = 512) -> None:
        marks = [time.thread_time()]
        batch = self.scheduler.next_batch(budget)
        marks.append(time.thread_time())
        assert batch is not None
        result = self.runner.launch(batch).collect()
        marks.append(time.thread_time())
        self.scheduler.process(batch, result)
        marks.append(time.thread_time())
        self.scheduler.load()
        marks.append(time.thread_time())
        if times is not None:
            for values, begin, end in zip(times.parts.values(), marks, marks[1:], strict=False):
                values.append((end - begin) * 1000)


def _prompts() -> Iterator[list[int]]:
    """Different from the first token on."""
    number = 10
    while True:
        yield [number + idx for idx in range(PROMPT_LEN)]
        number = 10 + (number * 7919 + 1) % (VOCAB_SIZE - PROMPT_LEN - 10)


def measure_steps(
    num_rows: int, num_waiting: int, *, has_slots: bool, num_steps: int, on_gpu: bool = False
) -> StepTimes:
    """`has_slots`: what waits does so for want of pages, not of slots."""
    max_tokens = num_steps + 10
    num_pages = num_rows * ((PROMPT_LEN + max_tokens) // PAGE_SIZE + 1)
    rig = HostRig(num_pages, max_tokens, num_rows * (2 if has_slots else 1), on_gpu=on_gpu)
    rig.fill(num_rows)
    rig.scheduler._reserve_ratio.value = 100.0  # whoever waits for pages goes on waiting
    rig.add(num_waiting)
    times = StepTimes({name: [] for name in ("schedule", "build", "process", "load")})
    for _ in range(num_steps):
        rig.step(times)
    assert rig.scheduler.load().num_running == num_rows
    assert rig.scheduler.load().num_waiting == num_waiting
    return times


def measure_queue(num_waiting: int) -> tuple[float, float]:
    """Microseconds of an add, and of an abort, beside so many that wait."""
    rig = HostRig(64, 100, 1)
    rig.add(1 + num_waiting)
    begin = time.thread_time()
    rig.add(200)
    added = time.thread_time()
    for run_id in range(num_waiting + 1, num_waiting + 201):
        rig.scheduler.abort(run_id)
    aborted = time.thread_time()
    return (added - begin) * 1e6 / 200, (aborted - added) * 1e6 / 200


def run(steps: Annotated[int, cyclopts.Parameter(help="Steps of each measurement.")] = 200) -> None:
    """Prints the tables."""
    torch.set_num_threads(1)
    settle_garbage()
    print(f"{'ms a step':34} schedule    build  process     load    total      p99")
    for num_rows, num_waiting, has_slots in (
        (1, 0, False),
        (32, 0, False),
        (256, 0, False),
        (256, 1_000, False),
        (256, 10_000, False),
        (256, 10, True),
        (256, 10_000, True),
    ):
        times = measure_steps(num_rows, num_waiting, has_slots=has_slots, num_steps=steps)
        what = "pages" if has_slots else "slots"
        name = f"{num_rows} rows, {num_waiting} wait for {what}"
        print(f"{name:34} {times.row()}")
    print("\non a GPU")
    for num_rows in (1, 32, 256):
        times = measure_steps(num_rows, 0, has_slots=False, num_steps=steps, on_gpu=True)
        print(f"{f'{num_rows} rows':34} {times.row()}")
    print(f"\n{'us beside so many that wait':34}      add    abort")
    for num_waiting in (10, 1_000, 10_000):
        add_us, abort_us = measure_queue(num_waiting)
        print(f"{num_waiting:<34} {add_us:8.1f} {abort_us:8.1f}")


def main() -> None:
    cyclopts.run(run)


if __name__ == "__main__":
    main()
