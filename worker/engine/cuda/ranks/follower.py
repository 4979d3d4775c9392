"""A rank other than the first: computes what rank 0 has planned.

Two forms are known. In one every rank has the scheduler, hears the same commands, and must come to
the same plans: whatever asks a clock (the budget of a step, the age of a request, a grammar that is
ready) has to be decided once and sent along, and books that drift apart are found out late. Here
rank 0 alone has books, grammars and a sampler. It sends each step as it was planned, some 75 bytes
for each request that decodes, before it launches its own part; and the tokens that it chose go
round on the GPUs, behind the step, so that no rank can go on with others. A follower never waits
for its GPU: it launches step N+1 while N runs, as rank 0 does.
"""

from __future__ import annotations

import torch

from worker.engine.cuda.steps.rank_runner import RankRunner
from worker.engine.cuda.tensor_parallel.rank_orders import (
    KeepTokens,
    OrderInbox,
    RankOrder,
    RunHead,
    RunStep,
)
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.request.token_ranges import Ints


class Follower:
    """Takes orders until rank 0 is gone, with which its process ends."""

    def __init__(
        self,
        device: GpuDevice,
        runner: RankRunner,
        inbox: OrderInbox,
        hidden_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._device = device
        self._runner = runner
        self._inbox = inbox
        self._hidden_size = hidden_size
        self._dtype = dtype

    def run(self) -> None:
        while True:
            self._follow(self._inbox.get())

    def _follow(self, order: RankOrder) -> None:
        @torch.inference_mode()
        def work() -> None:
            match order:
                case RunStep():
                    self._run_step(order)
                case RunHead(num_rows=num_rows):
                    self._runner.head(self._empty(num_rows, self._hidden_size, dtype=self._dtype))
                case KeepTokens(sample_rows=sample_rows):
                    self._keep(sample_rows)

        self._device.enqueue(work)

    def _run_step(self, step: RunStep) -> None:
        self._runner.compute(step)
        if step.plan.num_samples and not step.chooses_late:
            self._keep(step.plan.sample_rows)

    def _keep(self, sample_rows: Ints) -> None:
        self._runner.keep(self._empty(len(sample_rows), dtype=torch.int64), sample_rows)

    def _empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """To be filled with what rank 0 shares."""
        return torch.empty(shape, dtype=dtype, device=self._device.torch_device)
