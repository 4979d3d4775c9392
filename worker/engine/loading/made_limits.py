"""Where weights can be made codes at load: experts of transformers' models by our C++ alone."""

from __future__ import annotations

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import EngineConfig


def check_on_gpu(model: ModelConfig) -> None:
    """Raises ConfigError."""
    if _needs_products(model):
        raise _impossible(model, "on a GPU they are computed in 16 bits")


def check_on_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Before the library is looked for. Raises ConfigError."""
    if not _needs_products(model):
        return
    if config.cpu_kernels == "torch":
        raise _impossible(model, "cpu_kernels is torch")
    if config.load_format == "dummy":
        raise _impossible(model, "load_format is dummy")
    if dtype is not torch.bfloat16:
        raise _impossible(model, f"dtype is {str(dtype).removeprefix('torch.')}")


def check_library(model: ModelConfig, *, is_there: bool) -> None:
    """Raises ConfigError."""
    if _needs_products(model) and not is_there:
        raise _impossible(model, "it is not there, as the log says")


def _needs_products(model: ModelConfig) -> bool:
    """Our own decoder makes the same values dense where it has to."""
    return model.made_format is not None and not isinstance(model, DecoderConfig)


def _impossible(model: ModelConfig, reason: str) -> ConfigError:
    return ConfigError(
        f"quantization={model.made_format} is not possible with {model.architecture}: its experts "
        f"are multiplied in codes by our C++ for CPUs in bfloat16, and {reason}"
    )
