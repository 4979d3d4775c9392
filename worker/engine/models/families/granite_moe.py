"""Granite 3 with experts in all layers, each layer's in two tensors."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.granite import granite_config
from worker.engine.models.layer_config import MlpConfig
from worker.engine.models.model_config import ConfigFile

_STORED_NAMES = (
    (".mlp.gate.", ".block_sparse_moe.router.layer."),
    (".mlp.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"),
    (".mlp.experts.down_proj", ".block_sparse_moe.output_linear.weight"),
    (".mlp.shared_experts.", ".shared_mlp."),
)


def granite_moe_config(config: ConfigFile) -> DecoderConfig:
    """The config with a shared MLP, or without. Raises ConfigError, as the other readers do."""
    model = granite_config(config)
    experts = ExpertsConfig(
        num_experts=config.integer("num_local_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        scoring="softmax",
        is_normed=True,  # which is a softmax over those that are chosen
        shared_size=config.integer("shared_intermediate_size", 0, least=0),
        shared_mlp=MlpConfig(up=("input_linear",), down="output_linear"),
    )
    model = replace(model, stored_names=_STORED_NAMES)
    return with_experts(config, model, experts, [True] * model.num_layers)
