"""OLMoE and FlexOlmo: norms of all queries or keys at once, experts in all layers."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_experts,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import POST_NORMS, HeadNormConfig
from worker.engine.models.model_config import ConfigFile, NotFused


def olmoe_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    if config.get("clip_qkv", None) is not None:
        raise NotFused(f"{config.path}: clip_qkv is not computed here")
    model = decoder_config(
        config,
        windows=same_window(config, config.optional_integer("sliding_window", None)),
        has_attention_bias=config.boolean("attention_bias", default=False),
    )
    experts = ExpertsConfig(
        num_experts=config.integer("num_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        scoring="softmax",
        is_normed=config.boolean("norm_topk_prob", default=False),
    )
    model = replace(model, head_norm=HeadNormConfig(scope="whole"))
    return with_experts(config, model, experts, [True] * model.num_layers)


def flex_olmo_config(config: ConfigFile) -> DecoderConfig:
    """Norms behind attention and experts."""
    return replace(olmoe_config(config), norm_places=POST_NORMS)
