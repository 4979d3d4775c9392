"""Qwen3-Next and Qwen 3.5: gated delta nets, gated attention in some layers, experts in some."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.qwen_moe import layers_with_experts
from worker.engine.models.layer_config import (
    HeadNormConfig,
    MlpConfig,
    MtpLayout,
    NormConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile, NotFused
from worker.engine.models.recurrent.recurrent_config import DeltaNetConfig, layers_that_attend
from worker.engine.models.rope_config import partial_rope_config

_MTP = MtpLayout(
    layer="mtp.layers.0.",
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    join="mtp.fc",
    norm="mtp.norm",
)


def qwen3_5_config(config: ConfigFile) -> DecoderConfig:
    """The dense ones. Raises ConfigError, as the other readers do."""
    return _with_delta_nets(config)


def qwen3_5_moe_config(config: ConfigFile) -> DecoderConfig:
    """Experts in all layers."""
    size = config.integer("moe_intermediate_size")
    model = _with_delta_nets(config, intermediate_size=size)
    experts = _experts(config, config.integer("num_experts"), is_normed=True)
    return with_experts(config, model, experts, [True] * model.num_layers)


def qwen3_next_config(config: ConfigFile) -> DecoderConfig:
    """Experts in all layers, or in some."""
    model = _with_delta_nets(config, stored="by key head")
    num_experts = config.integer("num_experts", least=0)
    if not num_experts:
        return model
    is_normed = config.boolean("norm_topk_prob", default=True)
    experts = _experts(config, num_experts, is_normed=is_normed)
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def _with_delta_nets(
    config: ConfigFile,
    *,
    intermediate_size: int | None = None,
    stored: Literal["joined", "by key head"] = "joined",
) -> DecoderConfig:
    """The config with dense layers."""
    eps = config.number("rms_norm_eps", 1e-6)
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        norm=NormConfig(eps=eps, weight_offset=1.0),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config)),
        intermediate_size=intermediate_size,
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    if all(attends):
        raise NotFused(f"{config.path}: all its layers attend, by gates")
    delta_net = replace(delta_net_config(config, model.hidden_size, eps), stored=stored)
    return with_recurrent_layers(
        replace(
            model,
            has_attention_gate=True,
            head_norm=HeadNormConfig(),
            stored_names=((".recurrent.", ".linear_attn."),),
            mtp=_MTP,
        ),
        [None if each else delta_net for each in attends],
    )


def delta_net_config(config: ConfigFile, hidden_size: int, eps: float) -> DeltaNetConfig:
    """Raises ConfigError."""
    config.refuse("hidden_act", "silu")
    num_keys = config.integer("linear_num_key_heads")
    num_values = config.integer("linear_num_value_heads")
    if num_values % num_keys:
        raise ConfigError(
            f"{config.path}: linear_num_value_heads={num_values} do not share "
            f"linear_num_key_heads={num_keys}"
        )
    return DeltaNetConfig(
        hidden_size=hidden_size,
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel_size=config.integer("linear_conv_kernel_dim", least=2),
        norm_eps=eps,
    )


def _experts(config: ConfigFile, num_experts: int, *, is_normed: bool) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("moe_intermediate_size"),
        scoring="softmax",
        is_normed=is_normed,
        shared_size=config.integer("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        has_shared_gate=True,
    )
