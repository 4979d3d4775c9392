"""`python -m worker.engine.loading.model_report FOLDER...`: what the engine does with checkpoints.

Prints a line of JSON for each, and loads no weights. For commands that must not import torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from shared.errors import ConfigError
from shared.machine.host_limits import available_memory_bytes
from worker.engine.cuda.cuda_device import CudaDevice, has_gpu
from worker.engine.device.dtype_name import dtype_name
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.gpu_dtype import computes_bfloat16
from worker.engine.loading import model_limits
from worker.engine.loading.memory_check import check_memory, weight_bytes
from worker.engine.loading.stored_weights import remark_on_stored_weights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import choose_dtype
from worker.engine.models.registry import read_model_config
from worker.engine.native.native_choice import (
    has_fast_bfloat16,
    may_multiply_codes,
    native_obstacle,
)
from worker.engine.request.step_limits import StepLimits
from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class ModelReport:
    """`refusal`: why it is not served at all; `shortage`: why not on this machine, now."""

    refusal: str = ""
    architecture: str = ""
    computed_by: str = ""
    dtype: str = ""
    need: str = ""
    shortage: str = ""


def report_on(path: Path) -> ModelReport:
    """The report with the defaults of every flag."""
    config = EngineConfig()
    try:
        gpu = CudaDevice() if has_gpu() else None
        model = read_model_config(path, on_gpu=gpu is not None)
    except ConfigError as exc:
        return ModelReport(refusal=str(exc))
    is_fast = has_fast_bfloat16(config, model) if gpu is None else computes_bfloat16(gpu)
    dtype = choose_dtype(config.dtype, model, is_fast=is_fast)
    report = (
        _report_on_cpu(config, model, dtype)
        if gpu is None
        else report_on_gpu(config, model, dtype, gpu)
    )
    in_codes = gpu is None and _is_in_codes(config, model, dtype)
    told = remark_on_stored_weights(path, model, dtype, None if in_codes else 0.0)
    return replace(report, need="; ".join(filter(None, (report.need, told))))


def _report_on_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> ModelReport:
    shortage = ""
    is_native = native_obstacle(config, model, dtype) is None
    in_codes = _is_in_codes(config, model, dtype)
    try:
        check_memory(config, model, dtype, max_context_len=1 << 20, in_codes=in_codes)
    except ConfigError as exc:
        shortage = str(exc)
    return ModelReport(
        architecture=model.architecture,
        computed_by=_computed_by(model, is_native),
        dtype=dtype_name(dtype),
        need=_need(
            model, dtype, available_memory_bytes(), weight_bytes(model, dtype, in_codes=in_codes)
        ),
        shortage=shortage,
    )


def _is_in_codes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether our C++ multiplies what is in codes: all projections, or the experts."""
    if may_multiply_codes(config, model, dtype):
        return True
    return native_obstacle(config, model, dtype) is None


def report_on_gpu(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, gpu: GpuDevice
) -> ModelReport:
    """The report of one that takes its weights to `gpu`."""
    try:
        model_limits.check_on_gpu(config, model)
    except ConfigError as exc:
        return ModelReport(refusal=str(exc))
    share_bytes = int(config.gpu_memory_utilization * gpu.total_bytes())
    usable_bytes = min(gpu.free_bytes(), share_bytes)
    num_weight_bytes = weight_bytes(model, dtype)
    need = _need(model, dtype, usable_bytes, num_weight_bytes)
    state_bytes = StepLimits.of(config, on_gpu=True).max_running * model.state_bytes
    return ModelReport(
        architecture=model.architecture,
        computed_by=f"{_family_code(model)} on the GPU",
        dtype=dtype_name(dtype),
        need=need,
        shortage=need if num_weight_bytes + state_bytes > usable_bytes else "",
    )


def _need(model: ModelConfig, dtype: torch.dtype, usable_bytes: int, num_weight_bytes: int) -> str:
    kv_bytes = model.kv_bytes_per_token(dtype)
    token = f", a token of the cache {kv_bytes / 1024:.1f} KiB" if kv_bytes else ""
    state = ""
    if model.state_bytes:
        state = f", a state (of a request, or kept for others) {model.state_bytes / 1024:.1f} KiB"
    return (
        f"weights take {num_weight_bytes / (1 << 30):.2f} GiB{token}{state}; "
        f"{usable_bytes / (1 << 30):.2f} GiB are available"
    )


def _computed_by(model: ModelConfig, is_native: bool) -> str:
    if is_native:
        return "our C++"
    return f"{_family_code(model)} on torch"


def _family_code(model: ModelConfig) -> str:
    return "our fused decoder" if isinstance(model, DecoderConfig) else "transformers"


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        sys.stdout.write(msgspec.json.encode(report_on(Path(folder))).decode() + "\n")
