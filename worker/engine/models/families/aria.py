"""Aria's text: Llama with experts in all layers, each layer's in two tensors."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.model_config import ConfigFile

_STORED_NAMES = (
    (".mlp.gate.", ".mlp.router."),
    (".mlp.experts.gate_up_proj", ".mlp.experts.fc1.weight"),
    (".mlp.experts.down_proj", ".mlp.experts.fc2.weight"),
)


def aria_text_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    config.refuse("mlp_bias", False)
    config.refuse("hidden_act", "silu")  # of the shared experts; the others know no other one
    model = decoder_config(
        config, has_attention_bias=config.boolean("attention_bias", default=False)
    )
    size = model.intermediate_size
    experts = ExpertsConfig(
        num_experts=config.integer("moe_num_experts"),
        num_chosen=config.integer("moe_topk"),
        hidden_size=model.hidden_size,
        intermediate_size=size,
        scoring="softmax",
        is_normed=True,  # which is a softmax over those that are chosen
        shared_size=size * config.integer("moe_num_shared_experts"),
        is_stored_transposed=True,
    )
    model = replace(model, stored_names=_STORED_NAMES)
    return with_experts(config, model, experts, [True] * model.num_layers)
