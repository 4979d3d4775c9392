"""Arcee (AFM 4.5B): Llama with a squared ReLU in the place of gates."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile


def arcee_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    return decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("up_proj",)),
    )
