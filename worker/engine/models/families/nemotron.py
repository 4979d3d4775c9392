"""Nemotron, Minitron and Jais 2: LayerNorm, a squared ReLU."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import RopeConfig, partial_rope_config, rope_config


def nemotron_config(config: ConfigFile) -> DecoderConfig:
    """Weights of norms are distances from one. Raises ConfigError, as the other readers do."""
    eps, rope = config.number("norm_eps"), partial_rope_config(config)
    norm = NormConfig(kind="layer", eps=eps, weight_offset=1.0, has_bias=True)
    return _any_nemotron(config, norm, rope)


def jais2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError."""
    norm = NormConfig(kind="layer", eps=config.number("layer_norm_eps"), has_bias=True)
    return _any_nemotron(config, norm, rope_config(config))


def _any_nemotron(config: ConfigFile, norm: NormConfig, rope: RopeConfig) -> DecoderConfig:
    return decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        norm=norm,
        rope=rope,
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("up_proj",)),
    )
