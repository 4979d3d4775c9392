"""Ernie 4.5, the dense ones: Llama with the values of a pair side by side."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def ernie_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    has_bias = config.boolean("use_bias", default=False)
    return decoder_config(
        config,
        has_attention_bias=has_bias,
        has_mlp_bias=has_bias,
        rope=partial_rope_config(config, has_neighbours=True),
    )
