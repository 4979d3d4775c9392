"""MiMo V2 Flash: in windows twice the keys, and sinks; values shorter than keys."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    WeightScale,
    decoder_config,
    windows_of_types,
    with_attention_layers,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.families.deepseek import experts_by_layer, v3_experts
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import RopeConfig, partial_rope_config, refuse_truncation

_STORED_NAMES = ((".self_attn.sinks", ".self_attn.attention_sink_bias"),)


def mimo_v2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    config.refuse("attention_bias", False)
    types, window = config.get("layer_types", None), config.integer("sliding_window")
    windows = windows_of_types(config, types, window)
    full, local = (_rope(config, f"{each}_attention") for each in ("full", "sliding"))
    if full.share != local.share:
        raise ConfigError(f"{config.path}: layers that rotate unlike shares are not supported")
    model = decoder_config(config, windows=windows, rope=full)
    value_dim, scale = config.integer("v_head_dim"), config.optional_number("attention_value_scale")
    if value_dim > model.head_dim:
        raise ConfigError(f"{config.path}: 'v_head_dim' {value_dim} is more than a key has")
    model = replace(
        with_layer_ropes(config, model, [full if each is None else local for each in windows]),
        value_dim=value_dim if value_dim < model.head_dim else None,
        has_sinks=any(windows),
        has_sinks_in_windows_alone=True,
        weight_scales=() if scale is None else (WeightScale(module="v_proj", input=scale),),
        stored_names=_STORED_NAMES,
        unread_prefixes=("model.mtp.",),
    )
    layers = [
        replace(each, num_kv_heads=each.num_kv_heads * (1 if each.window is None else 2))
        for each in model.attention_layers
    ]
    model = with_attention_layers(config, model, layers)
    experts = replace(v3_experts(config.replaced(n_shared_experts=1)), shared_size=0)
    return with_experts(config, model, experts, experts_by_layer(config))


def _rope(config: ConfigFile, name: str) -> RopeConfig:
    config = config.replaced(rope_parameters=config.get("rope_parameters", {}).get(name))
    refuse_truncation(config.section("rope_parameters"))
    return partial_rope_config(config)
