"""Jamba: Mamba 1 in most layers, attention without positions in some, experts in some."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import MlpConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import ChannelMambaConfig

_STORED_NAMES = (
    ("model.norm.", "model.final_layernorm."),
    (".recurrent.", ".mamba."),
    (".mlp.gate.", ".feed_forward.router."),
    (".mlp.", ".feed_forward."),
)


def jamba_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    config.refuse("hidden_act", "silu")
    mlp = MlpConfig(activation=activation(config))
    model = decoder_config(config, mlp=mlp)
    model = replace(
        model,
        norm_places=NormPlaces(before_mlp="pre_ff_layernorm"),
        layer_ropes=(None,) * model.num_layers,
        stored_names=_STORED_NAMES,
    )
    mamba = ChannelMambaConfig(
        hidden_size=model.hidden_size,
        num_channels=config.integer("mamba_expand") * model.hidden_size,
        state_size=config.integer("mamba_d_state"),
        rank=config.integer("mamba_dt_rank"),
        kernel_size=config.integer("mamba_d_conv", least=2),
        has_conv_bias=config.boolean("mamba_conv_bias", default=True),
        has_projection_bias=config.boolean("mamba_proj_bias", default=False),
        norm_eps=config.number("rms_norm_eps", 1e-6),
    )
    attends = _each(config, "attn_layer", model.num_layers)
    model = with_recurrent_layers(model, [None if each else mamba for each in attends])
    num_experts = config.integer("num_experts")
    if num_experts == 1:
        return model
    experts = ExpertsConfig(
        num_experts=num_experts,
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        mlp=mlp,
        scoring="softmax",
    )
    return with_experts(config, model, experts, _each(config, "expert_layer", model.num_layers))


def _each(config: ConfigFile, name: str, num_layers: int) -> list[bool]:
    """By layer: it is one of those that come once in a period."""
    period, offset = config.integer(f"{name}_period"), config.integer(f"{name}_offset", least=0)
    return [layer_id % period == offset for layer_id in range(num_layers)]
