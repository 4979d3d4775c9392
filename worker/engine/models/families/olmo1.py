"""OLMo 1: LayerNorm without weights."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile

_EPS = 1e-5  # config.json does not say


def olmo1_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        norm=NormConfig(kind="layer", eps=_EPS, has_weight=False),
        mlp=MlpConfig(activation=activation(config)),
    )
    is_bound = config.optional_number("clip_qkv") is not None
    return replace(model, qkv_bound=config.positive_number("clip_qkv") if is_bound else None)
