"""Granite 3, the dense ones: Llama with scales of its own."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    same_window,
)
from worker.engine.models.model_config import ConfigFile


def granite_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    has_bias = config.boolean("attention_bias", default=False)
    return decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        attention_scale=_positive(config, "attention_multiplier"),
        scales=Scales(
            embedding=_positive(config, "embedding_multiplier"),
            residual=_positive(config, "residual_multiplier"),
            logits_divisor=_positive(config, "logits_scaling"),
        ),
    )


def _positive(config: ConfigFile, name: str) -> float:
    """One by default."""
    value = config.number(name, 1.0)
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{config.path}: '{name}' must be a positive number, not {value!r}")
    return value
