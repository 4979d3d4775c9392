"""Gemma 4: heads of two sizes, layers that see keys of others, inputs for each layer."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    keys_of_earlier_layers,
    windows_of_types,
    with_attention_layers,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.families.gemma2 import BOTH_SIDES
from worker.engine.models.families.qwen_moe import qwen_experts
from worker.engine.models.layer_config import (
    HeadNormConfig,
    MlpConfig,
    NormConfig,
    activation,
    layer_inputs_config,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import ropes_by_layer


def gemma4_config(config: ConfigFile) -> DecoderConfig:
    """Its text. Raises ConfigError, as the other readers do."""
    config.refuse("use_bidirectional_attention", "vision")
    ropes, types = ropes_by_layer(config), config.get("layer_types", [])
    act, hidden_size = activation(config, "hidden_activation"), config.integer("hidden_size")
    model = decoder_config(
        config,
        windows=windows_of_types(config, types, config.integer("sliding_window")),
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=1.0,
        norm=NormConfig(eps=config.number("rms_norm_eps")),
        rope=ropes.main,
        mlp=MlpConfig(activation=act),
        scales=Scales(embedding=hidden_size**0.5, is_embedding_rounded=True),
    )
    num_layers, kv_layer_ids = model.num_layers, keys_of_earlier_layers(config, types)
    by_layer = zip(
        model.attention_layers, config.of_each_layer(num_layers), types, kv_layer_ids, strict=True
    )
    layers = [
        replace(
            layer,
            head_dim=shape.integer("head_dim", layer.head_dim),
            num_kv_heads=shape.integer("num_key_value_heads", layer.num_kv_heads),
            kv_layer_id=kv_layer_id,
            is_causal=name == "full_attention",  # in windows tokens of an image see each other
        )
        for layer, shape, name, kv_layer_id in by_layer
    ]
    has_equal_values = config.boolean("attention_k_eq_v", default=False)
    size = shared_size = model.intermediate_size
    if config.boolean("use_double_wide_mlp", default=False):
        shared_size = 2 * size
    has_experts = config.boolean("enable_moe_block", default=False)
    model = replace(
        with_layer_ropes(config, model, ropes.layers),
        norm_places=replace(BOTH_SIDES, before_mlp=None) if has_experts else BOTH_SIDES,
        head_norm=HeadNormConfig(norms_values=True),
        keys_are_values=tuple(has_equal_values and each == "full_attention" for each in types),
        mlp_sizes=tuple(size if each is None else shared_size for each in kv_layer_ids),
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
        layer_inputs=layer_inputs_config(config, act),
        has_layer_scales=True,
    )
    model = with_attention_layers(config, model, layers)
    if not has_experts:
        return model
    experts = replace(
        qwen_experts(config.renamed({"num_experts_per_tok": "top_k_experts"})),
        mlp=model.mlp,
        is_normed=True,
        norm_eps=0.0,
        is_beside_mlp=True,
    )
    return with_experts(config, model, experts, [True] * num_layers)
