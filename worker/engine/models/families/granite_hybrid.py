"""Granite 4's hybrids: Granite with Mamba 2 in most layers, which mostly do not rotate."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import layers_that_attend

_STORED_NAMES = (
    (".recurrent.", ".mamba."),
    (".mlp.gate.", ".block_sparse_moe.router.layer."),
    (".mlp.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"),
    (".mlp.experts.down_proj", ".block_sparse_moe.output_linear.weight"),
    (".mlp.shared_experts.", ".shared_mlp."),
    (".mlp.", ".shared_mlp."),
)


def granite_hybrid_config(config: ConfigFile) -> DecoderConfig:
    """The config with experts or without. Raises ConfigError, as the other readers do."""
    mlp = MlpConfig(activation=activation(config), up=("input_linear",), down="output_linear")
    shared_size = config.integer("shared_intermediate_size")
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=config.positive_number("attention_multiplier", 1.0),
        mlp=mlp,
        intermediate_size=shared_size,
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            residual=config.positive_number("residual_multiplier", 1.0),
            logits_divisor=config.positive_number("logits_scaling", 1.0),
        ),
    )
    has_rope = config.get("position_embedding_type", None) == "rope"
    model = replace(
        model,
        layer_ropes=model.layer_ropes if has_rope else (None,) * model.num_layers,
        stored_names=_STORED_NAMES,
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    mamba = mamba_config(config, model.hidden_size)
    recurrent = [None if each else mamba for each in attends]
    model = with_recurrent_layers(model, recurrent)
    num_experts = config.integer("num_local_experts", 0, least=0)
    if not num_experts:
        return model
    experts = ExpertsConfig(
        num_experts=num_experts,
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        mlp=MlpConfig(activation=mlp.activation),
        scoring="softmax",
        is_normed=True,  # which is a softmax over those that are chosen
        shared_size=shared_size,
        shared_mlp=mlp,
    )
    return with_experts(config, model, experts, [True] * model.num_layers)
