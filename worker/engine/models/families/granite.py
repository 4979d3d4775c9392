"""Granite 3, the dense ones: Llama with scales of its own."""

from __future__ import annotations

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
    return decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        attention_scale=config.positive_number("attention_multiplier", 1.0),
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            residual=config.positive_number("residual_multiplier", 1.0),
            logits_divisor=config.positive_number("logits_scaling", 1.0),
        ),
    )
