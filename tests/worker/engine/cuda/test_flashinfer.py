"""Our use of flashinfer: its Python as installed, with its kernels in plain torch."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.attention.attention_task import AttentionTask, KernelName, PartName
from worker.engine.cuda.attention.gpu_attention import AttentionPart
from worker.engine.cuda.attention.plain_attention import PlainAttention
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.host_device import HostDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.request.step_limits import StepLimits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="pip install 'jetflock[cuda]'"
)
CPU = torch.device("cpu")
PAGE_SIZE, NUM_PAGES, MAX_PAGES = 16, 60, 8
STEP = StepLimits(max_running=8, max_step_tokens=256, has_overlap=True)
ALIKE = AttentionLayer(4, 2, 16, 0.25)
LAYERS = {
    "alike": [ALIKE, ALIKE],
    "window": [ALIKE, AttentionLayer(4, 2, 16, 0.25, window=20)],
    "tensor cores": [AttentionLayer(8, 2, 16, 0.3), AttentionLayer(8, 2, 16, 0.3, window=9)],
    "soft cap": [AttentionLayer(4, 2, 16, 0.25, soft_cap=2.0)],
    "sinks": [AttentionLayer(4, 2, 16, 0.25, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0]))],
}
PARTS: list[tuple[PartName, KernelName, str]] = [
    *(("decode", "fa2", name) for name in LAYERS if name != "sinks"),
    *(("decode", "xqa", name) for name in LAYERS if name != "soft cap"),
    *(("prefill", "fa2", name) for name in LAYERS if name != "sinks"),
    *(("prefill", "fa3", name) for name in LAYERS if name != "sinks"),
]


def make_pool(
    layers: list[AttentionLayer],
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> GpuKVPool:
    pool = GpuKVPool(KVLayout.of(layers, dtype, PAGE_SIZE), NUM_PAGES, device)
    generator = torch.Generator().manual_seed(1)
    for data in pool._data:
        data.copy_(torch.randn(data.shape, generator=generator))
    return pool


def make_part(
    device: GpuDevice,
    part: PartName,
    kernel: KernelName,
    pool: GpuKVPool,
    layers: list[AttentionLayer],
    dtype: torch.dtype = torch.float32,
) -> AttentionPart:
    from worker.engine.cuda.attention.attention_kernels import AttentionKernels  # needs triton

    return AttentionKernels(device, STEP, dtype).make_part(part, kernel, pool, layers)


class Step:
    """Of random rows, those of one token first, with pages that are mixed up."""

    def __init__(
        self,
        seed: int,
        num_decode: int,
        num_extend: int,
        size: int = 0,
        device: torch.device = CPU,
    ) -> None:
        rng = np.random.default_rng(seed)
        query_lens = np.concatenate([np.ones(num_decode, int), rng.integers(2, 40, num_extend)])
        seq_lens = query_lens + rng.integers(0, 80, len(query_lens))
        table = torch.from_numpy(rng.integers(0, NUM_PAGES, (12, MAX_PAGES + 3)).astype(np.int32))
        rows = torch.from_numpy(rng.permutation(11)[: len(query_lens)])
        if size:  # of a CUDA graph: the last row of the table is padding
            table[11] = NUM_PAGES
            num_padding = size - num_decode
            query_lens = np.ones(size, int)
            seq_lens = np.concatenate([seq_lens, np.ones(num_padding, int)])
            rows = torch.cat([rows, torch.full((num_padding,), 11)])
        table, rows = table.to(device), rows.to(device)
        lens, ends = torch.from_numpy(query_lens), torch.from_numpy(seq_lens)
        num_tokens = int(lens.sum())
        starts = (ends - lens.cumsum(0)).repeat_interleave(lens)
        self.rows = StepRows(
            size or num_decode, query_lens, seq_lens, rows, table, in_graph=bool(size)
        )
        self.batch = GpuBatch(
            input_ids=torch.zeros(num_tokens).long(),
            positions=(starts + torch.arange(num_tokens)).to(device),
            out_loc=torch.zeros(num_tokens).long(),
            token_rows=torch.arange(len(lens)).repeat_interleave(lens).to(device),
            num_decode=size or num_decode,
            seq_lens=ends.int().to(device),
            page_table=table[rows][:, :MAX_PAGES],
        )

    def queries(self, layer: AttentionLayer) -> torch.Tensor:
        shape = (len(self.batch.positions), layer.num_heads, layer.head_dim)
        return torch.randn(shape, generator=torch.Generator().manual_seed(2))

    def own(self, part: PartName) -> slice:
        """Tokens that are a part's."""
        num_decode = self.batch.num_decode
        return slice(num_decode) if part == "decode" else slice(num_decode, None)

    def wanted(
        self, pool: GpuKVPool, layers: list[AttentionLayer], idx: int, q: torch.Tensor
    ) -> torch.Tensor:
        plain = PlainAttention(pool, layers)
        plain.begin(self.batch)
        return plain._attend(q, idx).view_as(q)


def make_steps(part: PartName, device: torch.device = CPU) -> list[Step]:
    """Of many kinds in turn; graphs have their sizes, from the largest on."""
    steps = [Step(seed, 1 + seed % 4, (2 * seed) % 3, device=device) for seed in range(6)]
    if part == "prefill":
        return [step for step in steps if step.rows.extending.num_rows]
    return steps + [Step(seed, 1 + seed % 3, 0, 4 - seed % 2, device) for seed in range(6)]


@pytest.mark.parametrize(("part", "kernel", "name"), PARTS)
def test_a_part_attends_as_plain_torch(
    part: PartName,
    kernel: KernelName,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    interpreter: None,
) -> None:
    device, layers = HostDevice(), LAYERS[name]
    install(monkeypatch, device)
    pool = make_pool(layers)
    attention = make_part(device, part, kernel, pool, layers)
    for step in make_steps(part):
        attention.plan(step.rows)
        for idx, layer in enumerate(layers):
            q = step.queries(layer)
            output = torch.full_like(q, 7.0)
            attention.attend(q, step.batch, idx, output)
            wanted = torch.full_like(q, 7.0)
            wanted[step.own(part)] = step.wanted(pool, layers, idx, q)[step.own(part)]
            torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time, kernels are compiled
@pytest.mark.parametrize(
    ("part", "kernel", "name"), [each for each in PARTS if each[1:] != ("fa3", "tensor cores")]
)
def test_a_part_attends_on_a_gpu(
    part: PartName, kernel: KernelName, name: str, gpu: CudaDevice
) -> None:
    """The real kernels, in bfloat16; decode also in CUDA graphs."""
    dtype, device = torch.bfloat16, gpu.torch_device
    layers = [
        dataclasses.replace(
            layer, head_dim=64, sinks=None if layer.sinks is None else layer.sinks.to(device)
        )
        for layer in LAYERS[name]
    ]
    task = AttentionTask(layers, dtype, dtype, PAGE_SIZE, gpu.capability)
    if reason := task.obstacle(kernel):
        pytest.skip(reason)
    pool = make_pool(layers, dtype, device)
    attention = make_part(gpu, part, kernel, pool, layers, dtype)
    for step in make_steps(part, device):
        for idx, layer in enumerate(layers):
            q = step.queries(layer).to(device, dtype)
            output = torch.zeros_like(q)
            attend = functools.partial(attention.attend, q, step.batch, idx, output)
            plan = functools.partial(attention.plan, step.rows)
            gpu.enqueue(plan)
            run = gpu.capture(attend) if step.rows.in_graph else attend
            works: list[Callable[[], Any]] = [output.zero_, plan, run]
            for work in works:
                gpu.enqueue(work)
            gpu.mark().wait()
            wanted, own = step.wanted(pool, layers, idx, q), step.own(part)
            torch.testing.assert_close(output[own], wanted[own], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("part", "kernel"), [("decode", "fa2"), ("prefill", "fa3")])
def test_a_plan_is_not_overwritten_before_it_was_copied(
    part: PartName, kernel: KernelName, monkeypatch: pytest.MonkeyPatch, interpreter: None
) -> None:
    device, layers = LateDevice(), LAYERS["alike"]
    install(monkeypatch, device)
    pool = make_pool(layers)
    attention = make_part(device, part, kernel, pool, layers)
    steps = [Step(seed, 2, 2) for seed in range(4)]
    queries = [step.queries(layers[0]) for step in steps]
    outputs = [torch.zeros_like(q) for q in queries]
    for step, q, output in zip(steps, queries, outputs, strict=True):
        attention.plan(step.rows)
        attention.attend(q, step.batch, 0, output)
    device.mark().wait()
    for step, q, output in zip(steps, queries, outputs, strict=True):
        wanted, own = step.wanted(pool, layers, 0, q), step.own(part)
        torch.testing.assert_close(output[own], wanted[own], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("decode", "prefill"), [("fa2", "fa3"), ("xqa", "fa2")])
def test_an_engine_gives_the_tokens_of_the_cpu(
    decode: str,
    prefill: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interpreter: None,
) -> None:
    install(monkeypatch, HostDevice())  # the engine's own is late with all that is enqueued
    monkeypatch.setattr(AttentionTask, "obstacle", lambda *_: None)
    checkpoint = save_tiny_llama(tmp_path)
    config: dict[str, Any] = {"max_step_tokens": 16, "max_running": 4}
    adds = [
        make_add(run_id, random_prompt(5 + 7 * run_id, run_id), max_tokens=4, ignore_eos=True)
        for run_id in range(4)
    ]
    device: GpuDevice = LateDevice()
    ours = GpuRig(
        checkpoint,
        device,
        attention_backend="triton",
        decode_attention_backend=decode,
        prefill_attention_backend=prefill,
        overlap=True,
        cuda_graph_sizes=(2,),
        **config,
    ).run(*adds)
    assert ours == GpuRig(checkpoint, None, **config).run(*adds)


def install(monkeypatch: pytest.MonkeyPatch, device: GpuDevice) -> None:
    from tests.worker.engine.cuda import flashinfer_in_torch

    flashinfer_in_torch.install(monkeypatch, device)
