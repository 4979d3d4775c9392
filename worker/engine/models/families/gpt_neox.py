"""GPT-NeoX (Pythia) and Persimmon: LayerNorm, queries, keys and values in one by head."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.families.phi import HEAD_NORM
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile, NotFused
from worker.engine.models.rope_config import partial_rope_config

MASKS = ("bias", "masked_bias")  # of attention, as old versions of transformers stored them


def gpt_neox_config(config: ConfigFile) -> DecoderConfig:
    """Attention and MLP may stand beside each other, each behind its norm. Raises ConfigError."""
    has_bias = config.boolean("attention_bias", default=True)
    model = _any_neox(config, has_attention_bias=has_bias)
    layers = [f"gpt_neox.layers.{layer_id}" for layer_id in range(model.num_layers)]
    return replace(
        model,
        is_parallel=config.boolean("use_parallel_residual", default=True),
        stored_names=(
            ("model.embed_tokens.", "gpt_neox.embed_in."),
            ("model.norm.", "gpt_neox.final_layer_norm."),
            ("model.layers.", "gpt_neox.layers."),
            (".self_attn.", ".attention."),
            (".o_proj.", ".dense."),
            ("lm_head.", "embed_out."),
        ),
        unread_prefixes=tuple(f"{each}.attention.{mask}" for each in layers for mask in MASKS),
    )


def persimmon_config(config: ConfigFile) -> DecoderConfig:
    """The config with norms of queries and keys. Raises ConfigError."""
    model = _any_neox(config, has_attention_bias=True)
    return replace(
        model,
        head_norm=HEAD_NORM if config.boolean("qk_layernorm", default=True) else None,
        stored_names=((".o_proj.", ".dense."), ("model.norm.", "model.final_layernorm.")),
    )


def _any_neox(config: ConfigFile, *, has_attention_bias: bool) -> DecoderConfig:
    width = config.integer("hidden_size") // config.integer("num_attention_heads")
    if (head_dim := config.get("head_dim", width)) != width:
        raise NotFused(f"{config.path}: heads of {width} values, rotated as of {head_dim!r}")
    config = config.with_heads_of_width()
    up, down = "dense_h_to_4h", "dense_4h_to_h"
    model = decoder_config(
        config,
        has_attention_bias=has_attention_bias,
        has_mlp_bias=True,
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_eps"), has_bias=True),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=(up,), down=down),
    )
    return replace(model, stored_qkv=("query_key_value",), is_qkv_by_head=True)
