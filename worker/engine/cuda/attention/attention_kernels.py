"""Paged attention by kernels that are named: one writes to the pool, two attend, or one alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch

from shared.machine.cuda_toolkit import provide_nvcc
from worker.engine.cuda.attention.attention_task import KernelName, PartName
from worker.engine.cuda.attention.gpu_attention import (
    AttentionPart,
    GpuAttention,
    PagedGpuAttention,
)
from worker.engine.cuda.attention.triton_attention import TritonDecode, TritonExtend
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kernels.layer_kernels import rotate_and_append
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.cache_folder import cache_folder
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.rotary import RotaryEmbedding
from worker.engine.request.step_limits import StepLimits

FLOAT_BYTES = 256 << 20  # of memory for what parts of a row leave to be merged


class KernelAttention(PagedGpuAttention):
    """Norms, rotation and the way to the pool are our Triton kernel, whichever attends."""

    def __init__(
        self,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
        decode: AttentionPart,
        extend: AttentionPart,
    ) -> None:
        super().__init__(pool, layers)
        self._decode = decode
        self._extend = extend

    def plan(self, rows: StepRows) -> None:
        self._decode.plan(rows)
        self._extend.plan(rows)

    def forward_qkv(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        rotary: RotaryEmbedding,
        layer_id: int,
    ) -> torch.Tensor:
        q = rotate_and_append(
            qkv,
            norm,
            eps,
            rotary.cos,
            rotary.sin,
            self._batch.positions,
            *self._pool.keys_and_values(layer_id),
            self._batch.out_loc,
        )
        return self._attend(q, layer_id)

    def _attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        batch = self._batch
        output = q.new_empty(*q.shape[:2], self._layers[layer_id].num_values)
        if batch.num_decode:
            self._decode.attend(q, batch, layer_id, output)
        if batch.num_decode < len(batch.seq_lens):
            self._extend.attend(q, batch, layer_id, output)
        return output.flatten(1)


class FixedAttention(KernelAttention):
    """A token's bits depend on nothing but the tokens before it.

    All rows are blocks of queries to the kernel for prefill, those that decode as well. That kernel
    goes over the keys from position 0 on (or from the window's beginning), in blocks that begin at
    multiples of one number: where a chunk begins, and which queries share its block, changes
    neither a block of keys nor their order. Blocks that a query sees nothing of leave its sums as
    they are: their weights are zeros, and the largest score stays the largest.
    """

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], extend: TritonExtend
    ) -> None:
        super().__init__(pool, layers, extend, extend)

    def plan(self, rows: StepRows) -> None:
        self._extend.plan(dataclasses.replace(rows, num_decode=0))

    def begin(self, batch: GpuBatch) -> None:
        super().begin(dataclasses.replace(batch, num_decode=0))


class AttentionKernels:
    """Needs triton; flashinfer only for kernels of its that are asked for."""

    def __init__(self, device: GpuDevice, step: StepLimits, dtype: torch.dtype) -> None:
        self._device = device
        self._step = step
        self._dtype = dtype

    def make(
        self,
        decode: KernelName,
        prefill: KernelName,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
    ) -> GpuAttention:
        return KernelAttention(
            pool,
            layers,
            self.make_part("decode", decode, pool, layers),
            self.make_part("prefill", prefill, pool, layers),
        )

    def make_fixed(self, pool: GpuKVPool, layers: Sequence[AttentionLayer]) -> GpuAttention:
        """Whose bits do not depend on what else a step has."""
        return FixedAttention(pool, layers, self._make_extend(pool, layers))

    def make_part(
        self,
        part: PartName,
        kernel: KernelName,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
    ) -> AttentionPart:
        match part, kernel:
            case "decode", "triton":
                return TritonDecode(pool, layers, self._device, self._dtype, self._step.max_running)
            case "prefill", "triton":
                return self._make_extend(pool, layers)
            case "decode", "xqa":
                _provide_nvcc()
                from worker.engine.cuda.attention.xqa_decode import XqaDecode

                return XqaDecode(pool, layers, self._device)
            case (_, "fa2" as backend) | ("prefill", "fa3" as backend):
                return self._make_flashinfer(part, backend, pool, layers)
        raise AssertionError(f"no kernel for {part} is called {kernel}")

    def _make_flashinfer(
        self,
        part: PartName,
        backend: Literal["fa2", "fa3"],
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
    ) -> AttentionPart:
        _provide_nvcc()
        from worker.engine.cuda.attention.flashinfer_attention import (
            FlashinferDecode,
            FlashinferExtend,
            PagedLayers,
        )

        paged = PagedLayers(pool, layers, self._device, self._dtype, self._floats)
        return FlashinferDecode(paged) if part == "decode" else FlashinferExtend(backend, paged)

    def _make_extend(self, pool: GpuKVPool, layers: Sequence[AttentionLayer]) -> TritonExtend:
        step = self._step
        return TritonExtend(
            pool, layers, self._device, self._dtype, step.max_running, step.max_step_tokens
        )

    @cached_property
    def _floats(self) -> torch.Tensor:
        """Memory for what parts of a row leave to be merged: of all kernels, which run in order."""
        return torch.zeros(FLOAT_BYTES, dtype=torch.uint8, device=self._device.torch_device)


def _provide_nvcc() -> None:
    """Before flashinfer is imported, which looks for it once. Pip's is of CUDA 13."""
    folder = cache_folder()
    if folder is not None and (torch.version.cuda or "").startswith("13."):
        provide_nvcc(os.environ, folder)
