"""Bamba: Llama with Mamba 2 in most layers."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_recurrent_layers
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.layer_config import MlpConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config

_STORED_NAMES = (
    ("model.norm.", "model.final_layernorm."),
    (".recurrent.", ".mamba."),
    (".mlp.", ".feed_forward."),
)


def bamba_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config)),
    )
    model = replace(
        model, norm_places=NormPlaces(before_mlp="pre_ff_layernorm"), stored_names=_STORED_NAMES
    )
    mamba = mamba_config(config, model.hidden_size)
    attending = _attending(config, model.num_layers)
    return with_recurrent_layers(
        model, [None if layer_id in attending else mamba for layer_id in range(model.num_layers)]
    )


def _attending(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """The layers that attend."""
    indices = config.get("attn_layer_indices", None) or []
    if not isinstance(indices, list) or not all(each in range(num_layers) for each in indices):
        raise ConfigError(
            f"{config.path}: 'attn_layer_indices' must name some of {num_layers} layers, "
            f"not {indices!r}"
        )
    return frozenset(indices)
