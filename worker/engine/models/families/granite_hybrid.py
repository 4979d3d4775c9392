"""Granite 4, the dense hybrids: Granite with Mamba 2 in most layers, which mostly do not rotate."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    same_window,
    with_recurrent_layers,
)
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import layers_that_attend


def granite_hybrid_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    num_experts = config.integer("num_local_experts", 0, least=0)
    if num_experts:
        raise ConfigError(
            f"{config.path}: num_local_experts={num_experts} is not supported: of Granite 4's "
            "hybrids the dense ones are computed, with 0"
        )
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=config.positive_number("attention_multiplier", 1.0),
        mlp=MlpConfig(activation=activation(config), up=("input_linear",), down="output_linear"),
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            residual=config.positive_number("residual_multiplier", 1.0),
            logits_divisor=config.positive_number("logits_scaling", 1.0),
        ),
    )
    has_rope = config.get("position_embedding_type", None) == "rope"
    model = replace(
        model,
        intermediate_size=config.integer("shared_intermediate_size"),
        layer_ropes=model.layer_ropes if has_rope else (None,) * model.num_layers,
        stored_names=((".recurrent.", ".mamba."), (".mlp.", ".shared_mlp.")),
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    mamba = mamba_config(config, model.hidden_size)
    return with_recurrent_layers(config, model, [None if each else mamba for each in attends])
