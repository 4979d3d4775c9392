"""Qwen 2 with experts, in all layers or in some; what Qwen 3 shares with it."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.qwen import qwen_windows
from worker.engine.models.model_config import ConfigFile


def qwen2_moe_config(config: ConfigFile) -> DecoderConfig:
    """A shared expert with a gate. Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config, windows=qwen_windows(config), has_qkv_bias=config.boolean("qkv_bias", default=True)
    )
    experts = replace(
        qwen_experts(config),
        is_normed=config.boolean("norm_topk_prob", default=False),
        shared_size=config.integer("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        has_shared_gate=True,
    )
    return with_experts(config, model, experts, layers_with_experts(config, model.num_layers))


def layers_with_experts(config: ConfigFile, num_layers: int) -> list[bool]:
    """Whether it has experts, by layer: each `decoder_sparse_step`th, but for `mlp_only_layers`.
    Raises ConfigError.
    """
    dense = config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(each in range(num_layers) for each in dense):
        raise ConfigError(
            f"{config.path}: 'mlp_only_layers' must name some of {num_layers} layers, not {dense!r}"
        )
    step = config.integer("decoder_sparse_step", 1)
    return [idx not in dense and (idx + 1) % step == 0 for idx in range(num_layers)]


def qwen_experts(config: ConfigFile) -> ExpertsConfig:
    """Raises ConfigError."""
    return ExpertsConfig(
        num_experts=config.integer("num_experts", config.integer("num_local_experts", 60)),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("moe_intermediate_size"),
        scoring="softmax",
    )
