"""What a stage is given: its task, a device, how much to measure, and where to tell results."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bench.gpu.ceilings import Ceilings
from bench.gpu.direct_engine import DirectEngine
from bench.gpu.shapes import Costs, write_config
from bench.gpu.sizes import ON_CPU, ON_GPU, Sizes
from bench.gpu.task import Task
from worker.engine.cuda.cuda_device import CudaDevice, has_gpu
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.host_device import HostDevice
from worker.engine_link.engine_config import EngineConfig

# On a CPU the GPU's engine runs all the same: by Triton's interpreter, or in plain torch.
_ON_CPU = {
    "dtype": "float32",
    "num_threads": 1,
    "max_running": 8,
    "max_step_tokens": 64,
    "num_kv_tokens": 4096,
}
_ON_GPU = {"dtype": "bfloat16", "max_step_tokens": 8192}


@dataclass
class Rig:
    """Results are told as they come."""

    task: Task
    folder: Path  # for files; gone afterwards
    known: Sequence[dict[str, Any]]  # results of the tasks before
    tell: Callable[[dict[str, Any]], None]
    device: GpuDevice
    sizes: Sizes

    @classmethod
    def make(
        cls,
        task: Task,
        folder: Path,
        known: Sequence[dict[str, Any]],
        tell: Callable[[dict[str, Any]], None],
    ) -> Rig:
        return cls(task, folder, known, tell, _make_device(), ON_GPU if has_gpu() else ON_CPU)

    @property
    def is_gpu(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def torch_device(self) -> torch.device:
        return self.device.torch_device

    @property
    def costs(self) -> Costs:
        """Of the task's model."""
        is_fp8 = self.task.engine.get("kv_dtype") == "fp8"
        return Costs(self.task.model, kv_value_bytes=1 if is_fp8 else 2)

    @property
    def has_triton(self) -> bool:
        """Its compiler, or its interpreter."""
        return self.is_gpu or _has_interpreter()

    @property
    def page_size(self) -> int:
        """Of an engine's pool."""
        return EngineConfig.page_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the model on this device."""
        return torch.bfloat16 if self.is_gpu else torch.float32

    @property
    def backend(self) -> str:
        """Of attention, of an engine or alone. On a CPU only tasks that name one have another than
        plain torch, and only where Triton's interpreter is.
        """
        if self.is_gpu or (self.task.backend != "auto" and _has_interpreter()):
            return self.task.backend
        return "torch"

    @cached_property
    def ceilings(self) -> Ceilings:
        """Of an earlier task; measured now when there was none."""
        for result in self.known:
            if result["stage"] == "environment" and "bytes_per_s" in result:
                return Ceilings(result["bytes_per_s"], result["flops_per_s"])
        return Ceilings.measure(self.torch_device, self.sizes)

    def find(self, stage: str, **facts: Any) -> dict[str, Any] | None:
        """The last result of an earlier task with these facts."""
        for result in reversed(self.known):
            if result["stage"] == stage and facts.items() <= result.items():
                return result
        return None

    def engine(self, model: str = "", **config: Any) -> DirectEngine:
        """Of the task's model, with random weights. The one before must be forgotten."""
        gc.collect()  # its memory is the next one's
        settings = (_ON_GPU if self.is_gpu else _ON_CPU) | {"attention_backend": self.backend}
        path = write_config(self.folder, model or self.task.model)
        return DirectEngine(path, self.device, **(settings | self.task.engine | config))


def _has_interpreter() -> bool:
    is_chosen = os.environ.get("TRITON_INTERPRET") == "1"
    return is_chosen and importlib.util.find_spec("triton") is not None


def _make_device() -> GpuDevice:
    return CudaDevice() if has_gpu() else HostDevice()
