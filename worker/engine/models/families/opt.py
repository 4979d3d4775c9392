"""OPT and BioGPT: embeddings of positions, of which two are left out, LayerNorm."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    with_positions,
)
from worker.engine.models.layer_config import MlpConfig, NormConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile, NotFused

_OFFSET = 2
_EPS = 1e-5  # whatever BioGPT's config.json says
_PLACES = NormPlaces(before_attention="self_attn_layer_norm", before_mlp="final_layer_norm")


def opt_config(config: ConfigFile) -> DecoderConfig:
    """All but the 350M, whose norms come behind attention and MLP. Raises ConfigError."""
    config = config.renamed({"intermediate_size": "ffn_dim"}).with_heads_of_width()
    hidden_size = config.integer("hidden_size")
    for name, value in (
        ("do_layer_norm_before", True),
        ("_remove_final_layer_norm", False),
        ("word_embed_proj_dim", hidden_size),
    ):
        if (found := config.get(name, value)) != value:
            raise NotFused(f"{config.path}: {name}={found!r} is not supported")
    is_affine = config.boolean("layer_norm_elementwise_affine", default=True)
    norm = NormConfig(kind="layer", eps=_EPS, has_weight=is_affine, has_bias=is_affine)
    return _any_opt(
        config,
        prefix="model.decoder.",
        last_norm="final_layer_norm.",
        norm=norm,
        activation_name="activation_function",
        has_bias=config.boolean("enable_bias", default=True),
    )


def biogpt_config(config: ConfigFile) -> DecoderConfig:
    """Its embeddings may be scaled by their size. Raises ConfigError."""
    is_scaled = config.boolean("scale_embedding", default=True)
    model = _any_opt(
        config.with_heads_of_width(),
        prefix="biogpt.",
        last_norm="layer_norm.",
        norm=NormConfig(kind="layer", eps=_EPS, has_bias=True),
        activation_name="hidden_act",
        embedding_scale=config.integer("hidden_size") ** 0.5 if is_scaled else 1.0,
    )
    # A head that is the embeddings may be stored once more.
    unread = ("output_projection.",) if model.has_tied_embeddings else ()
    names = (*model.stored_names, ("lm_head.", "output_projection."))
    return replace(model, stored_names=names, unread_prefixes=unread)


def _any_opt(
    config: ConfigFile,
    *,
    prefix: str,
    last_norm: str,
    norm: NormConfig,
    activation_name: str,
    has_bias: bool = True,
    embedding_scale: float = 1.0,
) -> DecoderConfig:
    kind = activation(config, activation_name)
    model = decoder_config(
        config,
        has_attention_bias=has_bias,
        has_mlp_bias=has_bias,
        norm=norm,
        mlp=MlpConfig(activation=kind, is_gated=False, up=("fc1",), down="fc2"),
        scales=Scales(embedding=embedding_scale),
    )
    return replace(
        with_positions(model, _OFFSET),
        norm_places=_PLACES,
        stored_names=(
            ("model.norm.", f"{prefix}{last_norm}"),
            ("model.embed_", f"{prefix}embed_"),
            ("model.layers.", f"{prefix}layers."),
            (".mlp.", "."),
            (".o_proj.", ".out_proj."),
        ),
    )
