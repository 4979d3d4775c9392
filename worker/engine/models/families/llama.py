"""Llama 1 to 3, and what copies them."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.model_config import ConfigFile


def llama_config(config: ConfigFile) -> DecoderConfig:
    """Llama 1 to 3. Raises ConfigError, as the other readers do."""
    config.refuse("sliding_window")
    return decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
    )
