"""Which kernels compute a model's attention on a GPU: as configured, or the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cuda.attention.attention_task import KERNELS, AttentionTask, KernelName, PartName
from worker.engine.cuda.attention.attention_trial import KernelUnavailable
from worker.engine.cuda.attention.gpu_attention import GpuAttention, StepAttention
from worker.engine.cuda.attention.host_attention import HostAttention
from worker.engine.cuda.attention.plain_attention import PlainAttention
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.kv.kv_dtype import choose_kv_dtype
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.request.step_limits import StepLimits
from worker.engine_link.engine_config import EngineConfig

MakeAttention = Callable[[GpuKVPool, Sequence[AttentionLayer]], GpuAttention]
Stopwatch = Callable[[PartName, KernelName], float]  # raises KernelUnavailable
MakeStopwatch = Callable[[AttentionTask, StepLimits], Stopwatch]

log = get_logger(__name__)


class KVMemory(NamedTuple):
    """A pool, and a model's attention over it."""

    pool: GpuKVPool | KVCachePool
    attention: StepAttention
    mixed: StepAttention  # for CUDA graphs of steps with prefill: not all kernels can be there


class ChosenAttention(Protocol):
    """Makes pools, and a model's attention over them."""

    @property
    def name(self) -> str:
        """For those who watch."""
        ...

    def over(
        self, layout: KVLayout, num_pages: int, layers: Sequence[AttentionLayer]
    ) -> KVMemory: ...


class GpuKernels(NamedTuple):
    """A `ChosenAttention` on a GPU."""

    name: str
    device: torch.device
    make: MakeAttention
    make_mixed: MakeAttention

    def over(self, layout: KVLayout, num_pages: int, layers: Sequence[AttentionLayer]) -> KVMemory:
        pool = GpuKVPool(layout, num_pages, self.device)
        return KVMemory(pool, self.make(pool, layers), self.make_mixed(pool, layers))


class HostProducts:
    """A `ChosenAttention` of ranks on a CPU."""

    name = "torch, as on CPUs"

    def over(self, layout: KVLayout, num_pages: int, layers: Sequence[AttentionLayer]) -> KVMemory:
        pool = KVCachePool(layout, num_pages)
        attention = HostAttention(pool, layers)
        return KVMemory(pool, attention, attention)


def choose_attention(
    config: EngineConfig,
    device: GpuDevice,
    layers: Sequence[AttentionLayer],
    dtype: torch.dtype,
    step: StepLimits,
    trials: MakeStopwatch,
    group: RankGroup | None = None,
) -> ChosenAttention:
    """All ranks take what rank 0 has chosen. Raises ConfigError."""
    if config.device == "cpu":
        return HostProducts()
    choice = partial(GpuKernels, device=device.torch_device)
    if config.attention_backend == "torch":
        return choice("torch", make=PlainAttention, make_mixed=PlainAttention)
    if not layers:
        return choice("none", make=PlainAttention, make_mixed=PlainAttention)
    from worker.engine.cuda.attention.attention_kernels import AttentionKernels

    kernels = AttentionKernels(device, step, dtype)
    if config.deterministic:
        fixed = kernels.make_fixed
        return choice("triton, deterministic", make=fixed, make_mixed=fixed)
    kv_dtype = choose_kv_dtype(config.kv_dtype, dtype)
    task = AttentionTask(layers, dtype, kv_dtype, config.page_size, device.capability)
    chosen = [0] * len(KERNELS)
    if group is None or group.rank == 0:
        stopwatch = trials(task, step)
        chosen = [
            names.index(choose_kernel(part, config, task, stopwatch))
            for part, names in KERNELS.items()
        ]
    if group is not None:
        chosen = group.first(chosen, device.torch_device)
    decode, prefill = (names[idx] for names, idx in zip(KERNELS.values(), chosen, strict=True))
    return choice(
        decode if decode == prefill else f"{decode} decodes, {prefill} prefills",
        make=partial(kernels.make, decode, prefill),
        make_mixed=partial(kernels.make, "triton", "triton"),
    )


def choose_kernel(
    part: PartName, config: EngineConfig, task: AttentionTask, seconds: Stopwatch
) -> KernelName:
    """Raises ConfigError when nothing that the configuration allows can be used."""
    field, value, allowed = _allowed(part, config)
    obstacles = {kernel: task.obstacle(kernel) for kernel in allowed}
    possible = [kernel for kernel, reason in obstacles.items() if reason is None]
    took: dict[KernelName, float] = {}
    for kernel in possible if possible != ["triton"] else []:
        try:
            took[kernel] = seconds(part, kernel)
        except KernelUnavailable as exc:
            obstacles[kernel] = str(exc)
    reasons = {kernel: reason for kernel, reason in obstacles.items() if reason is not None}
    if not took and "triton" not in possible:
        told = "; ".join(f"{kernel}: {reason}" for kernel, reason in reasons.items())
        raise ConfigError(f"{field}={value} is not possible for {part}: {told}")
    chosen: KernelName = "triton"  # needs no trial
    if took:
        chosen = min(took, key=took.__getitem__)
    microseconds = {kernel: round(each * 1e6) for kernel, each in took.items()}
    log.info(
        "attention_kernel", part=part, kernel=chosen, microseconds=microseconds, not_used=reasons
    )
    return chosen


def _allowed(part: PartName, config: EngineConfig) -> tuple[str, str, Sequence[KernelName]]:
    """The field that chooses the kernel, its value, and the kernels that it stands for."""
    field = f"{part}_attention_backend"
    own: KernelName | None = getattr(config, field)
    if own is not None:
        return field, own, (own,)
    value, kernels = config.attention_backend, KERNELS[part]
    if value != "auto":
        kernels = tuple(each for each in kernels if (each == "triton") == (value == "triton"))
    return "attention_backend", value, kernels
