"""Llama 4: chunks of tokens in layers that rotate, growing queries in the others, experts."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    with_attention_layers,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import HeadNormConfig, QueryGrowth
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import neighbours_rope_config

_CHUNKS = {"full_attention": False, "chunked_attention": True}
_ROTATES = {0: False, 1: True}  # despite the name of the list


def llama4_config(config: ConfigFile) -> DecoderConfig:
    """Its text. Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        rope=neighbours_rope_config(config, has_neighbours=True),
        intermediate_size=config.integer("intermediate_size_mlp"),
    )
    num_layers = model.num_layers
    chunk = config.optional_integer("attention_chunk_size", None)
    is_chunked, rotates = (
        config.by_layer(name, config.get(name, None), known, num_layers)
        for name, known in (("layer_types", _CHUNKS), ("no_rope_layers", _ROTATES))
    )
    has_norm = config.boolean("use_qk_norm", default=True)
    has_growth = config.boolean("attn_temperature_tuning", default=True)
    growth = QueryGrowth(
        step=config.integer("floor_scale"),
        slope=config.number("attn_scale"),
        start=1,
        is_of_rotated=False,
    )
    model = replace(
        with_layer_ropes(config, model, [model.rope if each else None for each in rotates]),
        head_norm=HeadNormConfig(scope="bare", is_after_rope=True, is_of_rotated=True)
        if has_norm
        else None,
        query_growth=growth if has_growth else None,
        stored_names=((".mlp.gate.", ".feed_forward.router."), (".mlp.", ".feed_forward.")),
    )
    layers = [
        replace(layer, chunk=chunk if each else None)
        for layer, each in zip(model.attention_layers, is_chunked, strict=True)
    ]
    size, in_layers = config.integer("intermediate_size"), config.get("moe_layers", None)
    if not isinstance(in_layers, list) or not {*in_layers} <= {*range(num_layers)}:
        raise ConfigError(f"{config.path}: 'moe_layers' must name layers, not {in_layers!r}")
    experts = ExpertsConfig(
        num_experts=config.integer("num_local_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=size,
        scoring="sigmoid",
        scales_inputs=True,
        shared_size=size,
        shared_name="shared_expert",
        is_stored_transposed=True,
    )
    has_experts = [each in in_layers for each in range(num_layers)]
    model = with_attention_layers(config, model, layers)
    return with_experts(config, model, experts, has_experts)
