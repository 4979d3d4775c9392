"""Granite 4, the dense hybrids: Granite with Mamba 2 in most layers, which mostly do not rotate."""

from __future__ import annotations

import math
from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    same_window,
    with_recurrent_layers,
)
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import MambaConfig, layers_that_attend


def granite_hybrid_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    num_experts = config.integer("num_local_experts", 0, least=0)
    if num_experts:
        raise ConfigError(
            f"{config.path}: num_local_experts={num_experts} is not supported: of Granite 4's "
            "hybrids the dense ones are computed, with 0"
        )
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=config.positive_number("attention_multiplier", 1.0),
        mlp=MlpConfig(activation=activation(config), up=("input_linear",), down="output_linear"),
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            residual=config.positive_number("residual_multiplier", 1.0),
            logits_divisor=config.positive_number("logits_scaling", 1.0),
        ),
    )
    has_rope = config.get("position_embedding_type", None) == "rope"
    model = replace(
        model,
        intermediate_size=config.integer("shared_intermediate_size"),
        layer_ropes=model.layer_ropes if has_rope else (None,) * model.num_layers,
        stored_names=((".recurrent.", ".mamba."), (".mlp.", ".shared_mlp.")),
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    mamba = _mamba(config, model.hidden_size)
    return with_recurrent_layers(config, model, [None if each else mamba for each in attends])


def _mamba(config: ConfigFile, hidden_size: int) -> MambaConfig:
    config.refuse("hidden_act", "silu")
    num_heads, num_groups = config.integer("mamba_n_heads"), config.integer("mamba_n_groups")
    if num_heads % num_groups:
        raise ConfigError(
            f"{config.path}: mamba_n_heads={num_heads} are not shared by "
            f"mamba_n_groups={num_groups}"
        )
    return MambaConfig(
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_dim=config.integer("mamba_d_head"),
        num_groups=num_groups,
        state_size=config.integer("mamba_d_state"),
        kernel_size=config.integer("mamba_d_conv", least=2),
        has_conv_bias=config.boolean("mamba_conv_bias", default=True),
        has_projection_bias=config.boolean("mamba_proj_bias", default=False),
        step_limits=_step_limits(config),
        norm_eps=config.number("rms_norm_eps", 1e-6),
    )


def _step_limits(config: ConfigFile) -> tuple[float, float]:
    limits = config.get("time_step_limit", None)
    if limits is None:
        return 0.0, math.inf
    if (
        not isinstance(limits, list | tuple)
        or len(limits) != 2
        or not all(isinstance(each, int | float) for each in limits)
        or not 0 <= limits[0] <= limits[1]
    ):
        raise ConfigError(
            f"{config.path}: 'time_step_limit' must be the least and the most, not {limits!r}"
        )
    return float(limits[0]), float(limits[1])
