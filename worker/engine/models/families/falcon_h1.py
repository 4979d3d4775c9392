"""Falcon-H1: attention and Mamba 2 beside each other in every layer, with factors everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    WeightScale,
    decoder_config,
    with_recurrent_layers,
)
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.layer_config import MlpConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import MambaConfig

_STORED_NAMES = (
    ("model.norm.", "model.final_layernorm."),
    (".recurrent.", ".mamba."),
    (".mlp.", ".feed_forward."),
)


def falcon_h1_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        mlp=MlpConfig(activation=activation(config)),
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            logits_divisor=1.0 / config.positive_number("lm_head_multiplier", 1.0),
        ),
    )
    mamba = replace(
        mamba_config(config, model.hidden_size),
        has_out_bias=config.boolean("projectors_bias", default=False),
        norm=_norm(config),
    )
    model = replace(
        model,
        norm_places=NormPlaces(before_mlp="pre_ff_layernorm"),
        stored_names=_STORED_NAMES,
        weight_scales=_weight_scales(config, model, mamba),
    )
    layers = range(model.num_layers)
    return with_recurrent_layers(model, [mamba for _ in layers], [True for _ in layers])


def _norm(config: ConfigFile) -> Literal["gated", "before gates", "none"]:
    if not config.boolean("mamba_rms_norm", default=False):
        return "none"
    return "before gates" if config.boolean("mamba_norm_before_gate", default=True) else "gated"


def _weight_scales(
    config: ConfigFile, model: DecoderConfig, mamba: MambaConfig
) -> tuple[WeightScale, ...]:
    """A layer's factors."""
    attention_in = config.positive_number("attention_in_multiplier", 1.0)
    key = config.positive_number("key_multiplier", 1.0)
    attention_out = config.positive_number("attention_out_multiplier", 1.0)
    gate, down = _factors(config, "mlp_multipliers", 2)
    recurrent_in = config.positive_number("ssm_in_multiplier", 1.0)
    recurrent_out = config.positive_number("ssm_out_multiplier", 1.0)
    num_vector_values = mamba.num_groups * mamba.state_size
    sizes = [mamba.num_values] * 2 + [num_vector_values] * 2 + [mamba.num_heads]
    inner = zip(sizes, _factors(config, "ssm_multipliers", 5), strict=True)
    size, kv_size = model.hidden_size, model.num_kv_heads * model.head_dim
    return (
        WeightScale(module="self_attn.q_proj", input=attention_in),
        WeightScale(module="self_attn.k_proj", input=attention_in, outputs=((kv_size, key),)),
        WeightScale(module="self_attn.v_proj", input=attention_in),
        WeightScale(module="self_attn.o_proj", outputs=((size, attention_out),)),
        WeightScale(module="mlp.gate_proj", outputs=((model.intermediate_size, gate),)),
        WeightScale(module="mlp.down_proj", outputs=((size, down),)),
        WeightScale(module="recurrent.in_proj", input=recurrent_in, outputs=tuple(inner)),
        WeightScale(module="recurrent.out_proj", outputs=((size, recurrent_out),)),
    )


def _factors(config: ConfigFile, name: str, num: int) -> list[float]:
    values = config.get(name, [1.0] * num)
    if (
        not isinstance(values, list)
        or len(values) != num
        or not all(isinstance(each, int | float) and each > 0 for each in values)
    ):
        raise ConfigError(f"{config.path}: '{name}' must be {num} positive numbers, not {values!r}")
    return [float(each) for each in values]
