"""Hunyuan, the dense ones: norms of queries and keys that have been rotated."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import HeadNormConfig, MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import RopeConfig, rope_config

HEAD_NORM = HeadNormConfig(modules=("query_layernorm", "key_layernorm"), is_after_rope=True)


def hunyuan_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        rope=_rope(config),
        mlp=MlpConfig(activation=activation(config)),
    )
    return replace(model, head_norm=HEAD_NORM)


def _rope(config: ConfigFile) -> RopeConfig:
    """With `alpha` what is called dynamic is a larger base for texts of any length."""
    rope = rope_config(config)
    parameters = config.section("rope_parameters")
    alpha = None if parameters is None else parameters.optional_number("alpha")
    if rope.kind != "dynamic" or not alpha:
        return rope
    head_dim = config.integer("head_dim")
    return RopeConfig("default", rope.theta * alpha ** (head_dim / (head_dim - 2)))
