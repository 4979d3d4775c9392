"""Makes attention out of kernels that are named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch

from worker.engine.cuda.attention.attention_task import KernelName, PartName
from worker.engine.cuda.attention.gpu_attention import AttentionPart, GpuAttention
from worker.engine.cuda.attention.kernel_attention import FixedAttention, KernelAttention
from worker.engine.cuda.attention.triton_attention import TritonDecode, TritonExtend
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.request.step_limits import StepLimits

FLOAT_BYTES = 256 << 20


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
                return TritonDecode(pool, layers, self._device, self._step.max_running)
            case "prefill", "triton":
                return self._make_extend(pool, layers)
            case "decode", "xqa":
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
        from worker.engine.cuda.attention.flashinfer_attention import (
            FlashinferDecode,
            FlashinferExtend,
            PagedLayers,
        )

        paged = PagedLayers(pool, layers, self._device, self._dtype, self._floats)
        return FlashinferDecode(paged) if part == "decode" else FlashinferExtend(backend, paged)

    def _make_extend(self, pool: GpuKVPool, layers: Sequence[AttentionLayer]) -> TritonExtend:
        step = self._step
        return TritonExtend(pool, layers, self._device, step.max_running, step.max_step_tokens)

    @cached_property
    def _floats(self) -> torch.Tensor:
        """For what parts of a row leave to be merged: of all kernels, which run in order."""
        return torch.zeros(FLOAT_BYTES, dtype=torch.uint8, device=self._device.torch_device)
