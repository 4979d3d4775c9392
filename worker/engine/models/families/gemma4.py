"""Gemma 4: heads of two sizes, layers that see keys of others, inputs for each layer."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    windows_of_types,
    with_attention_layers,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.gemma2 import BOTH_SIDES
from worker.engine.models.layer_config import (
    Activation,
    HeadNormConfig,
    LayerInputsConfig,
    MlpConfig,
    NormConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import ropes_by_layer


def gemma4_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Its text. Raises ConfigError, as the other readers do."""
    config.refuse("use_bidirectional_attention", "vision")
    ropes, types = ropes_by_layer(config), config.get("layer_types", [])
    act, hidden_size = activation(config, "hidden_activation"), config.integer("hidden_size")
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=windows_of_types(config, types, config.integer("sliding_window")),
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=1.0,
        norm=NormConfig(eps=config.number("rms_norm_eps")),
        rope=ropes.main,
        mlp=MlpConfig(activation=act),
        scales=Scales(embedding=hidden_size**0.5, is_embedding_rounded=True),
    )
    num_layers, num_sharing = model.num_layers, config.integer("num_kv_shared_layers", 0, least=0)
    own_types = types[: num_layers - num_sharing]
    if not {*types} <= {*own_types}:
        raise ConfigError(
            f"{config.path}: 'num_kv_shared_layers' {num_sharing} leaves no keys for layers of "
            f"some of {types}"
        )
    last_of_type = {each: layer_id for layer_id, each in enumerate(own_types)}
    unlike = config.get("per_layer_config", {})  # by number, which may begin with zeros
    shapes = {int(name): ConfigFile(config.path, values) for name, values in unlike.items()}
    layers = []
    for layer_id, (layer, name) in enumerate(zip(model.attention_layers, types, strict=True)):
        shape = shapes.get(layer_id, config)
        layers.append(
            replace(
                layer,
                head_dim=shape.integer("head_dim", layer.head_dim),
                num_kv_heads=shape.integer("num_key_value_heads", layer.num_kv_heads),
                kv_layer_id=None if layer_id < len(own_types) else last_of_type[name],
                is_causal=name == "full_attention",  # in windows tokens of an image see each other
            )
        )
    has_equal_values = config.boolean("attention_k_eq_v", default=False)
    is_wide = config.boolean("use_double_wide_mlp", default=False)
    size = model.intermediate_size
    has_experts = config.boolean("enable_moe_block", default=False)
    model = replace(
        with_layer_ropes(config, model, ropes.layers),
        norm_places=replace(BOTH_SIDES, before_mlp=None) if has_experts else BOTH_SIDES,
        head_norm=HeadNormConfig(norms_values=True),
        keys_are_values=tuple(has_equal_values and each == "full_attention" for each in types),
        mlp_sizes=(size,) * len(own_types) + (2 * size if is_wide else size,) * num_sharing,
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
        layer_inputs=_layer_inputs(config, act),
        has_layer_scales=True,
        # Keys and values that some checkpoints have for layers that see those of others.
        unread_prefixes=tuple(
            f"model.{text}layers.{layer_id}.self_attn.{name}"
            for text in ("", "language_model.")
            for layer_id in range(len(own_types), num_layers)
            for name in ("k_", "v_")
        ),
    )
    model = with_attention_layers(config, model, layers)
    if not has_experts:
        return model
    experts = ExpertsConfig(
        num_experts=config.integer("num_experts"),
        num_chosen=config.integer("top_k_experts"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("moe_intermediate_size"),
        mlp=model.mlp,
        scoring="softmax",
        is_normed=True,
        norm_eps=0.0,
        is_beside_mlp=True,
    )
    return with_experts(config, model, experts, [True] * num_layers)


def _layer_inputs(config: ConfigFile, act: Activation) -> LayerInputsConfig | None:
    size = config.integer("hidden_size_per_layer_input", 0, least=0)
    if not size:
        return None
    vocab_size = config.integer("vocab_size_per_layer_input")
    if vocab_size < config.integer("vocab_size"):
        raise ConfigError(
            f"{config.path}: 'vocab_size_per_layer_input' {vocab_size} is less than 'vocab_size'"
        )
    pad_id = config.integer("pad_token_id", 0, least=0)
    return LayerInputsConfig(
        vocab_size=vocab_size, size=size, activation=act, image_token_id=pad_id
    )
