"""What a model asks of attention kernels on a GPU, and which of them can do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from shared.machine.installation import install_command
from worker.engine.cuda.batch.attention_tiles import least_bytes, shared_bytes
from worker.engine.device.dtype_name import dtype_name
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine_link.engine_config import DecodeKernelName, PrefillKernelName

PartName = Literal["decode", "prefill"]
KernelName = DecodeKernelName | PrefillKernelName

KERNELS: dict[PartName, tuple[KernelName, ...]] = {
    "decode": ("triton", "xqa", "fa2"),
    "prefill": ("triton", "fa2", "fa3"),
}
HEAD_DIMS = (64, 128, 256)
XQA_PAGE_SIZES = (16, 32, 64, 128)
XQA_MAX_GROUP = 16
XQA_CAPABILITIES = (9, 10, 12)
FA2_CAPABILITY = (8, 0)
FA3_CAPABILITY = 9


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTask:
    """Each kernel does it, or has an obstacle."""

    layers: Sequence[AttentionLayer]
    dtype: torch.dtype  # of queries and what comes out
    kv_dtype: torch.dtype
    page_size: int
    capability: tuple[int, int]  # of the GPU

    def obstacle(self, kernel: KernelName) -> str | None:
        """Why a kernel cannot do it, as far as that is known before it is tried."""
        if kernel == "triton":
            return self._obstacle_of_triton()
        if find_spec("flashinfer") is None:
            return f"flashinfer is not installed: {install_command('cuda')}"
        if self.dtype not in (torch.bfloat16, torch.float16):
            return f"it computes bfloat16, and dtype is {dtype_name(self.dtype)}"
        for layer in self.layers:
            if layer.chunk is not None:
                return "it knows no chunks of tokens that see each other alone"
            if layer.latent_dim is not None:
                return "it attends to keys and values, not to latents"
            if layer.head_dim not in HEAD_DIMS:
                return f"heads of {layer.head_dim} values are none of {_listed(HEAD_DIMS)}"
        match kernel:
            case "xqa":
                return self._obstacle_of_xqa()
            case "fa2":
                return self._obstacle_of_fa2()
            case "fa3":
                return self._obstacle_of_fa3()

    def _obstacle_of_triton(self) -> str | None:
        room = shared_bytes(self.capability)
        for layer in self.layers:
            if (needed := least_bytes(layer, self.dtype)) > room:
                return (
                    f"heads of {layer.head_dim} values in {dtype_name(self.dtype)} need "
                    f"{needed >> 10} KiB of shared memory, this GPU has {room >> 10}"
                )
        return None

    def _obstacle_of_xqa(self) -> str | None:
        major, minor = self.capability
        if major not in XQA_CAPABILITIES:
            return (
                f"it needs a GPU of compute capability {_listed(XQA_CAPABILITIES)}, this one has "
                f"{major}.{minor}"
            )
        if self.page_size not in XQA_PAGE_SIZES:
            return f"page_size={self.page_size} is none of {_listed(XQA_PAGE_SIZES)}"
        for layer in self.layers:
            if layer.group > XQA_MAX_GROUP:
                return f"{layer.group} heads share keys and values, it takes up to {XQA_MAX_GROUP}"
            if layer.soft_cap is not None:
                return "it knows no soft cap"
        return None

    def _obstacle_of_fa2(self) -> str | None:
        major, minor = self.capability
        if self.capability < FA2_CAPABILITY:
            return f"it needs a GPU of compute capability 8.0, this one has {major}.{minor}"
        return self._obstacle_of_wrappers()

    def _obstacle_of_fa3(self) -> str | None:
        major, minor = self.capability
        if major != FA3_CAPABILITY:
            return f"it needs a GPU of compute capability 9.0, this one has {major}.{minor}"
        if self.kv_dtype != self.dtype:
            queries, keys = dtype_name(self.dtype), dtype_name(self.kv_dtype)
            return f"queries are {queries}, keys and values {keys}"
        return self._obstacle_of_wrappers()

    def _obstacle_of_wrappers(self) -> str | None:
        if any(layer.sinks is not None for layer in self.layers):
            return "it knows no sinks"
        return None


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
