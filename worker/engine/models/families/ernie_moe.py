"""Ernie 4.5 with experts in some layers, chosen by softmax with a correction."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.ernie import ernie_config
from worker.engine.models.model_config import ConfigFile, NotFused


def ernie_moe_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    if config.boolean("use_bias", default=False):
        raise NotFused(f"{config.path}: biases beside experts are not computed here")
    model = ernie_config(config)
    correction = (".mlp.gate.e_score_correction_bias", ".mlp.moe_statics.e_score_correction_bias")
    model = replace(model, stored_names=(correction,), unread_prefixes=("model.mtp",))
    size = config.integer("moe_intermediate_size")
    experts = ExpertsConfig(
        num_experts=config.integer("moe_num_experts"),
        num_chosen=config.integer("moe_k"),
        hidden_size=model.hidden_size,
        intermediate_size=size,
        scoring="softmax",
        has_correction=True,
        is_correction_a_row=True,
        is_normed=True,
        norm_eps=config.positive_number("moe_norm_min"),
        shared_size=size * config.integer("moe_num_shared_experts", least=0),
    )
    interval = config.integer("moe_layer_interval")
    start, end = (config.integer(f"moe_layer_{at}_index", least=0) for at in ("start", "end"))
    has_experts = [
        start <= layer_id <= end and (layer_id + 1) % interval == 0
        for layer_id in range(model.num_layers)
    ]
    return with_experts(config, model, experts, has_experts)
