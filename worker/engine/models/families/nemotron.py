"""Nemotron and Minitron: LayerNorm with weights as distances from one, a squared ReLU."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, same_window
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def nemotron_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    eps = config.number("norm_eps")
    return decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        norm=NormConfig(kind="layer", eps=eps, weight_offset=1.0, has_bias=True),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("up_proj",)),
    )
