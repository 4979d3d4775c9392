"""Falcon 1 and 2: attention and MLP beside each other, few heads of keys and values, LayerNorm."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import (
    LLAMA_PLACES,
    PARALLEL,
    MlpConfig,
    NormConfig,
    NormPlaces,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import rope_config

_BESIDE = NormPlaces(before_attention="ln_attn", before_mlp="ln_mlp")


def falcon_config(config: ConfigFile) -> DecoderConfig:
    """In the 40B and later ones each head of keys lies with its queries. Raises ConfigError."""
    config.refuse("alibi", False)
    num_heads = config.integer("num_attention_heads")
    is_new = config.boolean("new_decoder_architecture", default=False)
    is_shared = not is_new and config.boolean("multi_query", default=True)
    is_parallel = is_new or config.boolean("parallel_attn", default=True)
    has_two_norms = is_new and config.integer("num_ln_in_parallel_attn", 2) == 2
    num_kv_heads = config.integer("num_kv_heads", num_heads) if is_new else num_heads
    has_bias = config.boolean("bias", default=False)
    up, down = "dense_h_to_4h", "dense_4h_to_h"
    config = config.with_heads_of_width(1 if is_shared else num_kv_heads)
    model = decoder_config(
        config,
        has_attention_bias=has_bias,
        has_mlp_bias=has_bias,
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_epsilon"), has_bias=True),
        rope=rope_config(config),
        mlp=MlpConfig(
            activation=activation(config, "activation"), is_gated=False, up=(up,), down=down
        ),
        intermediate_size=config.integer("ffn_hidden_size", 4 * config.integer("hidden_size")),
    )
    return replace(
        model,
        norm_places=_BESIDE if has_two_norms else PARALLEL if is_parallel else LLAMA_PLACES,
        is_parallel=is_parallel,
        stored_qkv=("query_key_value",),
        is_qkv_by_head=not is_shared,
        stored_names=(
            ("model.embed_tokens.", "transformer.word_embeddings."),
            ("model.norm.", "transformer.ln_f."),
            ("model.layers.", "transformer.h."),
            (".self_attn.", ".self_attention."),
            (".o_proj.", ".dense."),
        ),
    )
