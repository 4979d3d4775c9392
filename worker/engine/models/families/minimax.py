"""MiniMax-Text-01 and M1: lightning attention in most layers, norms in the stream, experts."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    WeightScale,
    decoder_config,
    same_window,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.families.mixtral import STORED_NAMES, mixtral_experts
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import LightningConfig, layers_that_attend
from worker.engine.models.rope_config import RopeConfig, rope_config

# What transformers makes of the slopes, and stores.
_BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
MAKERS_NAMES = {
    f"{ours}_{part}_factor": f"layernorm_{theirs}_{part}"
    for ours, theirs in (
        ("full_attn", "full_attention"),
        ("linear_attn", "linear_attention"),
        ("mlp", "mlp"),
    )
    for part in ("alpha", "beta")
}


def minimax_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    config = _in_our_words(config)
    windows = same_window(config, config.optional_integer("sliding_window", None))
    config.refuse("hidden_act", "silu")  # of lightning attention, too
    rope = _rope_config(config)
    model = decoder_config(config, windows=windows, rope=rope)
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    kept_by_attention, kept_by_lightning, kept_by_mlp = (
        config.positive_number(f"{each}_alpha_factor", 1.0)
        for each in ("full_attn", "linear_attn", "mlp")
    )
    attention, lightning, mlp = (
        config.positive_number(f"{each}_beta_factor", 1.0)
        for each in ("full_attn", "linear_attn", "mlp")
    )
    size = model.hidden_size
    model = replace(
        model,
        kept_inputs=tuple(
            (kept_by_attention if each else kept_by_lightning, kept_by_mlp) for each in attends
        ),
        weight_scales=(
            WeightScale(module="self_attn.o_proj", outputs=((size, attention),)),
            WeightScale(module="recurrent.out_proj", outputs=((size, lightning),)),
        ),
        stored_names=((".recurrent.", ".self_attn."), *STORED_NAMES),
        unread_prefixes=tuple(
            f"model.layers.{layer_id}.self_attn.{each}"
            for layer_id in range(model.num_layers)
            for each in _BUFFERS
        ),
    )
    layers = [None if each else _lightning(model, idx) for idx, each in enumerate(attends)]
    model = with_recurrent_layers(model, layers)
    experts = replace(mixtral_experts(config), scale=mlp)
    return with_experts(config, model, experts, [True] * model.num_layers)


def _in_our_words(config: ConfigFile) -> ConfigFile:
    """Of what the makers' own checkpoints say. Raises ConfigError."""
    config.refuse("postnorm", True)
    config.refuse("shared_intermediate_size", 0)
    config = config.renamed(MAKERS_NAMES)
    attends = config.get("attn_type_list", None)
    if not isinstance(attends, list):
        return config
    return config.replaced(
        layer_types=["full_attention" if each else "linear_attention" for each in attends]
    )


def _rope_config(config: ConfigFile) -> RopeConfig:
    """The config with the part of a head that the models were trained to rotate, which transformers
    ignores.

    Raises ConfigError.
    """
    num_heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", config.integer("hidden_size") // num_heads)
    num_rotated = config.integer("rotary_dim", head_dim)
    if num_rotated > head_dim:
        raise ConfigError(f"{config.path}: rotary_dim={num_rotated} of a head's {head_dim} values")
    return replace(rope_config(config), share=num_rotated / head_dim)


def _lightning(model: DecoderConfig, layer_id: int) -> LightningConfig:
    """The last layers forget most slowly."""
    return LightningConfig(
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        slope_scale=1.0 - layer_id / (model.num_layers - 1 + 1e-5) + 1e-5,
    )
