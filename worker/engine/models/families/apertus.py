"""Apertus: norms of queries and keys, an MLP without gates whose curve each layer has learned."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import HeadNormConfig, MlpConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile

_PLACES = NormPlaces(before_attention="attention_layernorm", before_mlp="feedforward_layernorm")


def apertus_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    mlp = MlpConfig(is_gated=False, up=("up_proj",))
    if config.get("hidden_act", "xielu") == "xielu":
        mlp = replace(mlp, is_learned=True)
    else:
        mlp = replace(mlp, activation=activation(config))
    model = decoder_config(
        config, has_attention_bias=config.boolean("attention_bias", default=False), mlp=mlp
    )
    return replace(model, head_norm=HeadNormConfig(), norm_places=_PLACES)
