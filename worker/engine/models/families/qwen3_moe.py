"""Qwen 3 with experts, in all layers or in some."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_experts,
)
from worker.engine.models.families.qwen import qwen3_config
from worker.engine.models.families.qwen_moe import layers_with_experts, qwen_experts
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile


def qwen3_moe_config(config: ConfigFile) -> DecoderConfig:
    """One window for all layers, if any. Raises ConfigError, as the other readers do."""
    has_window = config.boolean("use_sliding_window", default=False)
    window = config.optional_integer("sliding_window", None) if has_window else None
    model = decoder_config(
        config,
        windows=same_window(config, window),
        has_attention_bias=config.boolean("attention_bias", default=False),
    )
    model = replace(model, head_norm=HeadNormConfig())
    is_normed = config.boolean("norm_topk_prob", default=False)
    experts = replace(qwen_experts(config), is_normed=is_normed)
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def qwen3_vl_moe_config(config: ConfigFile) -> DecoderConfig:
    """The text of Qwen3-VL: experts of a layer in two tensors."""
    model = qwen3_config(config)
    experts = replace(qwen_experts(config), is_normed=True, is_stored_transposed=True)
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))
