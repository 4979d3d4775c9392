"""Cohere 2 with experts: dense layers may rotate without a window."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig, WeightScale, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.cohere2 import cohere2_config
from worker.engine.models.families.deepseek import experts_by_layer
from worker.engine.models.layer_config import NormConfig
from worker.engine.models.model_config import ConfigFile

_HALF = WeightScale(module="shared_experts.down_proj", input=0.5)


def cohere2_moe_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    size, has_experts = config.integer("intermediate_size"), experts_by_layer(config)
    dense_size = config.optional_integer("prefix_dense_intermediate_size", None)
    of_dense = config.replaced(intermediate_size=dense_size or size)
    model = cohere2_config(of_dense)
    if config.integer("prefix_dense_sliding_window_pattern") == 1:
        by_layer = zip(model.layer_ropes, has_experts, strict=True)
        ropes = tuple(rope if is_sparse else model.rope for rope, is_sparse in by_layer)
        model = replace(model, layer_ropes=ropes)
    if (eps := config.optional_number("rms_norm_eps")) is not None:
        model = replace(model, norm=NormConfig(eps=eps))
    scoring = config.get("expert_selection_fn", "softmax")
    if scoring not in ("softmax", "sigmoid"):
        raise ConfigError(f"{config.path}: expert_selection_fn={scoring!r} is not supported")
    config.refuse("shared_expert_combination_strategy", "sum", "average")
    num_shared = config.integer("num_shared_experts", least=0)
    is_average = config.get("shared_expert_combination_strategy", "average") == "average"
    halves = is_average and num_shared > 0
    experts = ExpertsConfig(
        num_experts=config.integer("num_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=size,
        mlp=model.mlp,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        is_normed=scoring == "softmax" or config.boolean("norm_topk_prob", default=True),
        norm_eps=0.0,
        scale=0.5 if halves else 1.0,
        shared_size=size * num_shared,
        shared_mlp=model.mlp,
    )
    model = replace(model, weight_scales=(_HALF,) if halves else ())
    return with_experts(config, model, experts, has_experts)
