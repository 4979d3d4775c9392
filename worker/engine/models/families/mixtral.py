"""Mixtral and MiniMax M2: experts in all layers, under names of their own."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_experts,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config

STORED_NAMES = (
    (".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),
    (".mlp.", ".block_sparse_moe."),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
)


def mixtral_config(config: ConfigFile) -> DecoderConfig:
    """Experts chosen by softmax. Raises ConfigError, as the other readers do."""
    window = config.optional_integer("sliding_window", None)
    windows = same_window(config, window)
    model = decoder_config(config, windows=windows)
    return _with_experts(config, model, mixtral_experts(config))


def minimax_m2_config(config: ConfigFile) -> DecoderConfig:
    """Experts chosen by sigmoid, with a correction; norms of all queries or keys at once."""
    rope = partial_rope_config(config)
    model = decoder_config(config, rope=rope)
    model = replace(model, head_norm=HeadNormConfig(scope="whole"))
    experts = replace(mixtral_experts(config), scoring="sigmoid", has_correction=True)
    return _with_experts(config, model, experts)


def mixtral_experts(config: ConfigFile) -> ExpertsConfig:
    """Raises ConfigError."""
    return ExpertsConfig(
        num_experts=config.integer("num_local_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        scoring="softmax",
        is_normed=True,
    )


def _with_experts(
    config: ConfigFile, model: DecoderConfig, experts: ExpertsConfig
) -> DecoderConfig:
    model = replace(model, stored_names=STORED_NAMES)
    return with_experts(config, model, experts, [True] * model.num_layers)
