"""Where --deterministic is possible: where no kernel adds in another order for other company."""

from __future__ import annotations

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import EngineConfig


def check_on_ranks(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Raises ConfigError."""
    if config.device != "cpu":
        check_on_gpu(config, model)
    elif config.deterministic and dtype != torch.float32:
        raise ConfigError(
            f"deterministic is not possible with {config.divided_by} on a CPU in bfloat16: take "
            "dtype=float32"
        )


def check_on_gpu(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError."""
    if not config.deterministic:
        return
    for part in ("", "decode_", "prefill_"):
        value = getattr(config, name := f"{part}attention_backend")
        if value not in ("auto", "triton", None):
            raise ConfigError(
                f"deterministic is not possible with {name}={value}: it has attention of its own, "
                "leave it out"
            )
    if not isinstance(model, DecoderConfig):
        raise _not_computed_by_us(model)
    if model.beyond_llama is not None:
        raise ConfigError(
            f"deterministic is not possible with {model.architecture} on a GPU: "
            f"{model.beyond_llama} is computed by torch there, in an order of its own"
        )


def check_on_cpu(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, *, is_native: bool
) -> None:
    """Our C++ and the fused decoder in float32 are so always. Raises ConfigError elsewhere."""
    if not config.deterministic or is_native:
        return
    if not isinstance(model, DecoderConfig):
        raise _not_computed_by_us(model)
    if dtype != torch.float32:
        raise ConfigError(
            "deterministic is not possible with torch in bfloat16: take dtype=float32, or "
            "cpu_kernels=native on a processor that has AVX2"
        )


def _not_computed_by_us(model: ModelConfig) -> ConfigError:
    return ConfigError(
        f"deterministic is not possible with {model.architecture}: its products round by the "
        "number of tokens that a step has"
    )
