"""Helium: Llama with the values of a pair side by side."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def helium_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    return decoder_config(
        config,
        has_qkv_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        rope=partial_rope_config(config, has_neighbours=True),
    )
