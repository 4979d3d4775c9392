"""StarCoder 2: LayerNorm, and an MLP without gates."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, same_window
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile


def starcoder2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    has_bias = config.boolean("use_bias", default=True)
    return decoder_config(
        config,
        windows=same_window(config, config.optional_integer("sliding_window", None)),
        has_attention_bias=has_bias,
        has_mlp_bias=has_bias,
        norm=NormConfig(kind="layer", eps=config.number("norm_epsilon"), has_bias=True),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("c_fc",), down="c_proj"),
    )
