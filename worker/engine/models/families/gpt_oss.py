"""GPT-OSS: sinks of attention, windows in every other layer, experts with biases."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_experts,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import ClampedGate, MlpConfig
from worker.engine.models.model_config import ConfigFile


def gpt_oss_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    window = config.optional_integer("sliding_window", None)
    model = decoder_config(
        config,
        windows=windows_of_types(config, config.get("layer_types", None), window),
        has_attention_bias=config.boolean("attention_bias", default=True),
    )
    stored_names = ((".mlp.gate.", ".mlp.router."),)
    model = replace(model, has_sinks=True, stored_names=stored_names)
    slope, bound = config.positive_number("swiglu_alpha"), config.positive_number("swiglu_limit")
    experts = ExpertsConfig(
        num_experts=config.integer("num_local_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        mlp=MlpConfig(clamp=ClampedGate(slope, bound)),
        scoring="softmax",
        is_normed=True,  # which is a softmax over those that are chosen
        has_router_bias=True,
        has_bias=True,
        is_stored_transposed=True,
        is_stored_in_turns=True,
    )
    return with_experts(config, model, experts, [True] * model.num_layers)
