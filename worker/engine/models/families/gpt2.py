"""GPT-2, and BigCode's (StarCoder 1, SantaCoder): embeddings of positions, LayerNorm."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_positions
from worker.engine.models.families.gpt_neox import MASKS
from worker.engine.models.layer_config import MlpConfig, NormConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile, NotFused

NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_STORED_NAMES = (
    ("model.embed_tokens.", "transformer.wte."),
    ("model.embed_positions.", "transformer.wpe."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    (".self_attn.", ".attn."),
    (".o_proj.", ".c_proj."),
)
_STARTS = ("", "transformer.")  # without, as OpenAI stored it


def gpt2_config(config: ConfigFile) -> DecoderConfig:
    """Scores may shrink with the number of the layer. Raises ConfigError."""
    model = _any_gpt2(config.renamed(NAMES).with_heads_of_width())
    if config.boolean("scale_attn_by_inverse_layer_idx", default=False):
        layers = [
            replace(layer, scale=layer.scale / number)
            for number, layer in enumerate(model.attention_layers, start=1)
        ]
        model = replace(model, attention_layers=tuple(layers))
    return replace(model, is_stored_transposed=True)


def gpt_bigcode_config(config: ConfigFile) -> DecoderConfig:
    """All heads may share one of keys and values. Raises ConfigError."""
    is_shared = config.boolean("multi_query", default=True)
    renamed = config.renamed(NAMES).with_heads_of_width(num_kv_heads=1 if is_shared else None)
    model = _any_gpt2(renamed)
    return replace(model, is_qkv_by_head=not is_shared)


def _any_gpt2(config: ConfigFile) -> DecoderConfig:
    if config.boolean("add_cross_attention", default=False):
        raise NotFused(f"{config.path}: it attends to another model's states")
    is_scaled = config.boolean("scale_attn_weights", default=True)
    kind = activation(config, "activation_function")
    model = decoder_config(
        config,
        has_attention_bias=True,
        has_mlp_bias=True,
        attention_scale=None if is_scaled else 1.0,
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_epsilon"), has_bias=True),
        mlp=MlpConfig(activation=kind, is_gated=False, up=("c_fc",), down="c_proj"),
        intermediate_size=config.optional_integer("n_inner", None)
        or 4 * config.integer("hidden_size"),
    )
    layers = [f"{start}h.{each}" for each in range(model.num_layers) for start in _STARTS]
    return replace(
        with_positions(model),
        norm_places=NormPlaces(before_attention="ln_1", before_mlp="ln_2"),
        stored_qkv=("c_attn",),
        stored_names=_STORED_NAMES,
        unread_prefixes=tuple(f"{each}.attn.{mask}" for each in layers for mask in MASKS),
    )
