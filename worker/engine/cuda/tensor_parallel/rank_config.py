"""What a rank is told: nothing is left for it to find out, where ranks might differ."""

from __future__ import annotations

import dataclasses

import torch

from shared.errors import ConfigError
from worker.engine.cache.page_allocator import PoolNeeds, num_kv_pages
from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.cuda.tensor_parallel.rank_part import rank_part
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.host_device import HostDevice
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_setup import DTYPES
from worker.engine.request.step_limits import StepLimits
from worker.engine_link.engine_config import EngineConfig


def rank_config(
    config: EngineConfig,
    step: StepLimits,
    model_config: DecoderConfig,
    dtype: torch.dtype,
    max_context_len: int,
) -> EngineConfig:
    """The configuration of all ranks. Raises ConfigError when the model cannot be divided."""
    parts = [rank_part(config, model_config, rank) for rank in range(config.num_ranks)]
    settled = dataclasses.replace(
        config,
        dtype=next(name for name, each in DTYPES.items() if each == dtype),
        max_context_len=max_context_len,
        max_running=step.max_running,
        max_step_tokens=step.max_step_tokens,
        overlap=step.has_overlap,
        num_threads=torch.get_num_threads(),
    )
    if config.device != "cpu":
        return settled
    if config.kv_dtype != "auto":
        raise ConfigError(
            f"kv_dtype={config.kv_dtype} is not possible with {config.divided_by} on a CPU: ranks "
            "keep keys and values there in the model's own format"
        )
    needs = PoolNeeds(config.page_size, max(each.kv_bytes_per_token(dtype) for each in parts))
    num_pages, _ = num_kv_pages(config, needs)
    return dataclasses.replace(
        settled,
        attention_backend="torch",
        decode_attention_backend=None,
        prefill_attention_backend=None,
        num_kv_tokens=num_pages * config.page_size,
        # Launching costs nothing there, and padding is computed.
        cuda_graph_sizes=config.cuda_graph_sizes or (0,),
        cuda_graph_tokens=config.cuda_graph_tokens or (0,),
    )


def rank_device(config: EngineConfig, rank: int) -> GpuDevice:
    """The GPU of its number on its host; the CPU for all where the configuration says so."""
    return HostDevice() if config.device == "cpu" else CudaDevice(rank % config.num_local_ranks)
