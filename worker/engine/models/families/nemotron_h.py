"""Nemotron-H: layers of one kind each, by a pattern: Mamba 2, attention, an MLP or experts."""

from __future__ import annotations

import math
from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.deepseek import v3_experts
from worker.engine.models.layer_config import MlpConfig, NormConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import MambaConfig

_KINDS = ("linear_attention", "full_attention", "mlp", "moe")
STORED_NAMES = (
    ("model.norm.", "model.norm_f."),
    ("model.embed_tokens.", "model.embeddings."),
    (".recurrent.", ".mixer."),
    (".self_attn.", ".mixer."),
    (".mlp.", ".mixer."),
    ("model.", "backbone."),
)


def nemotron_h_config(config: ConfigFile) -> DecoderConfig:
    """And Nemotron 3. Raises ConfigError, as the other readers do."""
    config.refuse("tie_word_embeddings", False)
    kinds = _layer_kinds(config)
    eps = config.number("layer_norm_epsilon", 1e-5)
    mlp = MlpConfig(
        activation=activation(config, "mlp_hidden_act"), is_gated=False, up=("up_proj",)
    )
    model = decoder_config(
        config,
        windows=(None,) * len(kinds),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        norm=NormConfig(eps=eps),
        mlp=mlp,
    )
    model = replace(
        model,
        norm_places=NormPlaces(before_attention="norm", before_mlp=None),
        layer_ropes=(None,) * len(kinds),
        has_mlp=tuple(kind in ("mlp", "moe") for kind in kinds),
        stored_names=STORED_NAMES,
        unread_prefixes=("mtp.",),
    )
    mamba = _mamba(config, model.hidden_size, eps)
    model = with_recurrent_layers(
        model,
        [mamba if kind == "linear_attention" else None for kind in kinds],
        [kind == "full_attention" for kind in kinds],
    )
    if "moe" not in kinds:
        return model
    return with_experts(config, model, _experts(config, mlp), [kind == "moe" for kind in kinds])


def _layer_kinds(config: ConfigFile) -> list[str]:
    kinds = config.get("layers_block_type", config.get("layer_types", None))
    if not isinstance(kinds, list) or not all(each in _KINDS for each in kinds):
        raise ConfigError(
            f"{config.path}: 'layers_block_type' must be of {', '.join(_KINDS)}, not {kinds!r}"
        )
    if "linear_attention" not in kinds:
        raise ConfigError(f"{config.path}: no layer is recurrent: not supported")
    return kinds


def _mamba(config: ConfigFile, hidden_size: int, eps: float) -> MambaConfig:
    config.refuse("mamba_hidden_act", "silu")
    has_bias = config.boolean("use_bias", default=False)
    num_heads, num_groups = config.integer("mamba_num_heads"), config.integer("n_groups")
    if num_heads % num_groups:
        raise ConfigError(
            f"{config.path}: mamba_num_heads={num_heads} are not shared by n_groups={num_groups}"
        )
    return MambaConfig(
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_dim=config.integer("mamba_head_dim"),
        num_groups=num_groups,
        state_size=config.integer("ssm_state_size"),
        kernel_size=config.integer("conv_kernel", least=2),
        has_conv_bias=config.boolean("use_conv_bias", default=True),
        has_in_bias=has_bias,
        has_out_bias=has_bias,
        step_limits=(config.number("time_step_min", 0.001), math.inf),
        norm_eps=eps,
    )


def _experts(config: ConfigFile, mlp: MlpConfig) -> ExpertsConfig:
    """DeepSeek V3's, of the MLP's kind."""
    config.refuse("mlp_bias", False)
    return replace(
        v3_experts(config.replaced(n_shared_experts=1)),
        mlp=mlp,
        latent_size=config.optional_integer("moe_latent_size", None) or 0,
        shared_size=config.integer("moe_shared_expert_intermediate_size"),
        shared_mlp=mlp,
    )
