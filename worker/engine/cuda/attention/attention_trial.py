"""How long attention kernels take for steps like a model's, on keys and values of noise."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from worker.engine.cuda.attention.attention_task import AttentionTask, KernelName, PartName
from worker.engine.cuda.attention.gpu_attention import AttentionPart
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.kv.kv_dtype import to_kv_dtype
from worker.engine.device.dtype_name import dtype_name
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.device.trial_timer import TrialTimer
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.request.step_limits import StepLimits

CONTEXT_LEN = 2048
DECODE_ROWS = (1, 16, 64)
CHUNK_LENS = (CONTEXT_LEN, CONTEXT_LEN // 4)  # the second one goes on behind others
NUM_LAYERS = 8  # that take turns in the place of all: one request's are more than caches hold
POOL_SHARE = 0.25  # of the free memory, at most
NUM_ROUNDS = 10
# From our own kernel's result, relative, in steps of the dtype's mantissa. Of 2,048 keys of noise,
# weights and results rounded to bfloat16 make 0.25 %, queries or weights in e4m3 2.4 to 3.5 %.
MAX_DIFFERENCE_EPS = 2.0
OUR_KERNEL: KernelName = "triton"


MakePart = Callable[
    [PartName, KernelName, GpuKVPool, Sequence[AttentionLayer]],
    AttentionPart,
]


class KernelUnavailable(Exception):
    """It cannot be used here; the message says why."""


class WrongResults(KernelUnavailable):
    """Which they are at every trial."""


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """A step to be timed."""

    rows: StepRows
    batch: GpuBatch
    queries: Sequence[torch.Tensor]  # by layer, [num_tokens, num_heads, head_dim]


class AttentionTrial:
    """Holds memory on the GPU as long as it lives."""

    def __init__(
        self,
        make_part: MakePart,
        device: GpuDevice,
        task: AttentionTask,
        step: StepLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_part = make_part
        self._device = device
        self._task = task
        self._layers = [_with_own_sinks(layer, device) for layer in task.layers[:NUM_LAYERS]]
        self._step = step
        self._timer = TrialTimer(device, clock)
        self._results: dict[_Case, torch.Tensor] = {}  # of our own kernels, of all layers

    def seconds(self, part: PartName, kernel: KernelName, *, compares: bool = False) -> float:
        """How long attention takes in a step, its plan included: the geometric mean of some steps.

        `compares`: its results with our own kernel's. Raises KernelUnavailable.
        """
        try:
            cases = self._cases[part]
            if compares and not all(case in self._results for case in cases):
                self.seconds(part, OUR_KERNEL)
            attention = self._make_part(part, kernel, self._pool, self._layers)
            took = []
            for case in cases:
                seconds, output = self._try(attention, case)
                took.append(seconds)
                if kernel == OUR_KERNEL:
                    self._results[case] = output
                elif compares:
                    self._compare(output, self._results[case])
        except KernelUnavailable:
            raise
        except Exception as exc:  # what a compiler, a loader and a driver raise has no common class
            raise KernelUnavailable(f"{type(exc).__name__}: {str(exc)[:300]}") from exc
        return math.prod(took) ** (1 / len(took))

    def _try(self, attention: AttentionPart, case: _Case) -> tuple[float, torch.Tensor]:
        """The seconds of a step, and what it gives."""
        outputs = [torch.empty_like(q) for q in case.queries]

        def attend() -> None:
            for idx in range(len(self._task.layers)):
                layer_id = idx % len(self._layers)
                attention.attend(case.queries[layer_id], case.batch, layer_id, outputs[layer_id])

        self._device.enqueue(lambda: attention.plan(case.rows))
        replay = self._device.capture(attend) if case.rows.in_graph else attend

        def step() -> None:
            attention.plan(case.rows)
            replay()

        seconds = self._timer.seconds(step, NUM_ROUNDS)
        return seconds, torch.cat([output.flatten() for output in outputs])

    def _compare(self, output: torch.Tensor, wanted: torch.Tensor) -> None:
        difference = float((output.float() - wanted.float()).norm() / wanted.float().norm())
        limit = MAX_DIFFERENCE_EPS * torch.finfo(self._task.dtype).eps
        if not difference <= limit:
            name = dtype_name(self._task.dtype)
            raise WrongResults(
                f"its results differ from triton's by {difference:.1%}, and {limit:.1%} is what "
                f"{name} makes"
            )

    @cached_property
    def _cases(self) -> dict[PartName, list[_Case]]:
        return {
            "decode": [
                self._case([1] * num_rows, [CONTEXT_LEN] * num_rows) for num_rows in self._num_rows
            ],
            "prefill": [
                self._case([min(length, self._step.max_step_tokens)], [CONTEXT_LEN])
                for length in CHUNK_LENS
            ],
        }

    @property
    def _kv_layout(self) -> KVLayout:
        return KVLayout.of(self._layers, self._task.kv_dtype, self._task.page_size)

    @cached_property
    def _num_rows(self) -> list[int]:
        """As many as run, and as the memory has room for."""
        row_bytes = CONTEXT_LEN * self._kv_layout.bytes_per_token
        most = min(self._step.max_running, int(self._device.free_bytes() * POOL_SHARE) // row_bytes)
        return [num_rows for num_rows in DECODE_ROWS if num_rows <= max(1, most)]

    @cached_property
    def _pool(self) -> GpuKVPool:
        task, device = self._task, self._device.torch_device
        pool = GpuKVPool(self._kv_layout, self._num_rows[-1] * self._num_row_pages, device)
        for layer_id in range(len(self._layers)):
            for data in pool.keys_and_values(layer_id):
                noise = torch.randn(data.shape, dtype=task.dtype, device=device)
                data.copy_(to_kv_dtype(noise, task.kv_dtype))
        return pool

    @property
    def _num_row_pages(self) -> int:
        return -(-CONTEXT_LEN // self._task.page_size)

    def _case(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> _Case:
        num_rows, num_tokens = len(query_lens), sum(query_lens)
        num_decode = query_lens.count(1)
        device = self._device.torch_device
        order = torch.randperm(num_rows * self._num_row_pages, device=device).int()
        page_table = order.view(num_rows, -1)
        places = torch.arange(num_tokens, device=device)
        lens = np.array(seq_lens)
        return _Case(
            StepRows(
                num_decode,
                np.array(query_lens),
                lens,
                torch.arange(num_rows, device=device),
                page_table,
                in_graph=num_decode == num_rows,
            ),
            GpuBatch(
                input_ids=places,
                positions=places,
                out_loc=places,
                token_rows=places,
                num_decode=num_decode,
                seq_lens=upload(self._device, lens.astype(np.int32)),
                page_table=page_table,
            ),
            [
                torch.randn(
                    (num_tokens, layer.num_heads, layer.head_dim),
                    dtype=self._task.dtype,
                    device=device,
                )
                for layer in self._layers
            ],
        )


def _with_own_sinks(layer: AttentionLayer, device: GpuDevice) -> AttentionLayer:
    """The model's are not loaded yet."""
    if layer.sinks is None:
        return layer
    sinks = torch.zeros(layer.num_heads, device=device.torch_device)
    return dataclasses.replace(layer, sinks=sinks)
