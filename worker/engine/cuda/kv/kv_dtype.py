"""In which number format keys and values are kept, and where that is possible."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.checkpoint.stored_format import KVDTypeName
from shared.errors import ConfigError
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.formats.safetensors_files import SafetensorsFiles

KV_FP8 = torch.float8_e4m3fn  # four bits of exponent, three of mantissa, up to 448
_SCALES = (".k_scale", ".v_scale", ".kv_scale")
FP8_CAPABILITY = (8, 9)  # from which on kernels convert from and to it


def check_kv_dtype(name: KVDTypeName, gpu: GpuDevice | None) -> None:
    """Raises ConfigError where it is not possible."""
    if name == "auto":
        return
    if name == "int8":
        if gpu is not None:
            raise ConfigError("kv_dtype=int8 is for a CPU, with tp=1: on a GPU there is fp8")
        return
    if gpu is None:
        raise ConfigError(f"kv_dtype={name} needs a GPU: on a CPU there is int8")
    if gpu.capability < FP8_CAPABILITY:
        raise ConfigError(
            f"kv_dtype={name} needs a GPU of compute capability 8.9 or newer; auto runs on this one"
        )


def check_kv_scales(name: KVDTypeName, model_path: Path) -> None:
    """Raises ConfigError for a checkpoint that was made for other eight-bit keys than ours."""
    if name == "auto":
        return
    with SafetensorsFiles(model_path) as files:
        scales = [each for each in files.headers if each.endswith(_SCALES)]
    if scales:
        raise ConfigError(
            f"kv_dtype={name} has no use for scales of keys and values, and the checkpoint has "
            f"{len(scales)} ({scales[0]}, ...); with kv_dtype=auto it needs none"
        )


def choose_kv_dtype(name: KVDTypeName, dtype: torch.dtype) -> torch.dtype:
    """`dtype` is the model's."""
    return KV_FP8 if name == "fp8" else dtype


def to_kv_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is beyond the format's range becomes its largest; what is not a number stays none."""
    if dtype == KV_FP8:
        largest = torch.finfo(KV_FP8).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)
