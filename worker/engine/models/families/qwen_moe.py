"""Qwen 2 and 3 with experts, in all layers or in some."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_experts,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.qwen import qwen3_config, qwen_windows
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile


def qwen2_moe_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """A shared expert with a gate. Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=qwen_windows(config),
        has_qkv_bias=config.boolean("qkv_bias", default=True),
    )
    experts = replace(
        _experts(config),
        is_normed=config.boolean("norm_topk_prob", default=False),
        shared_size=config.integer("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        has_shared_gate=True,
    )
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def qwen3_moe_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """One window for all layers, if any."""
    has_window = config.boolean("use_sliding_window", default=False)
    window = config.optional_integer("sliding_window", None) if has_window else None
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, window),
        has_attention_bias=config.boolean("attention_bias", default=False),
    )
    model = replace(model, head_norm=HeadNormConfig())
    is_normed = config.boolean("norm_topk_prob", default=False)
    experts = replace(_experts(config), is_normed=is_normed)
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def qwen3_vl_moe_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """The text of Qwen3-VL: experts of a layer in two tensors."""
    model = qwen3_config(config, architecture, eos_token_ids)
    experts = replace(_experts(config), is_normed=True, is_stored_transposed=True)
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def layers_with_experts(config: ConfigFile, num_layers: int) -> list[bool]:
    """By layer: each `decoder_sparse_step`th, but for `mlp_only_layers`. Raises ConfigError."""
    dense = config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(each in range(num_layers) for each in dense):
        raise ConfigError(
            f"{config.path}: 'mlp_only_layers' must name some of {num_layers} layers, not {dense!r}"
        )
    step = config.integer("decoder_sparse_step", 1)
    return [idx not in dense and (idx + 1) % step == 0 for idx in range(num_layers)]


def _experts(config: ConfigFile) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=config.integer("num_experts", config.integer("num_local_experts", 60)),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("moe_intermediate_size"),
        scoring="softmax",
    )
