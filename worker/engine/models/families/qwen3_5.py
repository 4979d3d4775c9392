"""Qwen 3.5, the dense ones: gated delta nets, and gated attention in some layers."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_recurrent_layers,
)
from worker.engine.models.layer_config import HeadNormConfig, MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile, NotFused
from worker.engine.models.recurrent.recurrent_config import DeltaNetConfig, layers_that_attend
from worker.engine.models.rope_config import partial_rope_config


def qwen3_5_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    eps = config.number("rms_norm_eps", 1e-6)
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_attention_bias=config.boolean("attention_bias", default=False),
        norm=NormConfig(eps=eps, weight_offset=1.0),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config)),
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    if all(attends):
        raise NotFused(f"{config.path}: all its layers attend, by gates")
    delta_net = _delta_net(config, model.hidden_size, eps)
    return with_recurrent_layers(
        config,
        replace(
            model,
            has_attention_gate=True,
            head_norm=HeadNormConfig(),
            stored_names=((".recurrent.", ".linear_attn."),),
        ),
        [None if each else delta_net for each in attends],
    )


def _delta_net(config: ConfigFile, hidden_size: int, eps: float) -> DeltaNetConfig:
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
