"""Zamba 2: Mamba 2 in all layers, some of which are given what shared blocks attend to."""

from __future__ import annotations

import math
from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_recurrent_layers,
)
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.layer_config import MlpConfig, NormPlaces, SharedBlocksConfig, activation
from worker.engine.models.model_config import ConfigFile

_KINDS = {"linear_attention": False, "hybrid": True}
_MAMBA_NAMES = {
    "mamba_n_heads": "n_mamba_heads",
    "mamba_n_groups": "mamba_ngroups",
    "mamba_d_head": "mamba_headdim",
    "mamba_proj_bias": "add_bias_linear",
}
_MAMBA_NORM_EPS = 1e-5  # whatever the model's other norms have


def zamba2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    windows = same_window(config, None)
    kinds = config.get("layers_block_type", None)
    attends = config.by_layer("layers_block_type", kinds, _KINDS, len(windows))
    mlp = MlpConfig(activation=activation(config), up=("gate_up_proj",))
    head_dim = 2 * config.integer("hidden_size") // config.integer("num_attention_heads")
    model = decoder_config(
        config, windows=windows, head_dim=head_dim, attention_scale=(head_dim / 2) ** -0.5, mlp=mlp
    )
    hybrids = tuple(layer_id for layer_id, each in enumerate(attends) if each)
    if not config.boolean("use_mem_rope", default=False):
        model = replace(model, layer_ropes=(None,) * model.num_layers)
    model = replace(
        model,
        norm_places=NormPlaces(before_mlp=None),
        has_mlp=(False,) * model.num_layers,
        shared_blocks=_shared_blocks(config, model, hybrids, mlp) if hybrids else None,
        stored_names=_stored_names(hybrids),
    )
    mamba = replace(
        mamba_config(config.renamed(_MAMBA_NAMES).replaced(hidden_act="silu"), model.hidden_size),
        has_conv_bias=True,
        step_limits=(config.number("time_step_min", 0.001), math.inf),
        norm_eps=_MAMBA_NORM_EPS,
    )
    return with_recurrent_layers(model, [mamba] * model.num_layers, attends)


def _shared_blocks(
    config: ConfigFile, model: DecoderConfig, hybrids: tuple[int, ...], mlp: MlpConfig
) -> SharedBlocksConfig:
    adapts_attention = config.boolean("use_shared_attention_adapter", default=False)
    if adapts_attention and model.num_kv_heads != model.num_heads:
        raise ConfigError(
            f"{config.path}: use_shared_attention_adapter needs as many KV heads as heads, not "
            f"num_key_value_heads={model.num_kv_heads} of {model.num_heads}"
        )
    return SharedBlocksConfig(
        num_blocks=min(config.integer("num_mem_blocks"), len(hybrids)),
        layer_ids=hybrids,
        adapter_rank=config.integer("adapter_rank"),
        adapts_attention=adapts_attention,
        mlp=mlp,
        has_mlp_bias=config.boolean("add_bias_linear", default=False),
    )


def _stored_names(hybrids: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Layers that take a block have their mixer and its norm in a module of their own."""
    moved = [
        (f"model.layers.{layer_id}.{ours}.", f"model.layers.{layer_id}.mamba_decoder.{theirs}.")
        for layer_id in hybrids
        for ours, theirs in (("recurrent", "mamba"), ("input_layernorm", "input_layernorm"))
    ]
    return ("model.norm.", "model.final_layernorm."), *moved, (".recurrent.", ".mamba.")
