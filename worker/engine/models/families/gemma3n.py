"""Gemma 3n: streams beside each other, layers that see keys of others, inputs for each layer."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    keys_of_earlier_layers,
    windows_of_types,
    with_attention_layers,
    with_layer_ropes,
)
from worker.engine.models.families.gemma2 import BOTH_SIDES
from worker.engine.models.layer_config import (
    AltupConfig,
    HeadNormConfig,
    MlpConfig,
    NormConfig,
    activation,
    layer_inputs_config,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import ropes_by_layer


def gemma3n_config(config: ConfigFile) -> DecoderConfig:
    """Its text. Raises ConfigError, as the other readers do."""
    ropes, types = ropes_by_layer(config), config.get("layer_types", [])
    act, hidden_size = activation(config, "hidden_activation"), config.integer("hidden_size")
    sizes = [int(each) for each in _by_layer(config, "intermediate_size", 1, 2**31)]
    shares = _by_layer(config, "activation_sparsity_pattern", 0.0, 1.0 - 1e-6)
    model = decoder_config(
        config,
        windows=windows_of_types(config, types, config.integer("sliding_window")),
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=1.0,
        norm=NormConfig(eps=config.number("rms_norm_eps")),
        rope=ropes.main,
        mlp=MlpConfig(activation=act),
        intermediate_size=max(sizes),
        scales=Scales(embedding=hidden_size**0.5, is_embedding_rounded=True),
    )
    model = replace(
        with_layer_ropes(config, model, ropes.layers),
        norm_places=BOTH_SIDES,
        head_norm=HeadNormConfig(norms_values=True),
        mlp_sizes=tuple(sizes),
        gate_cuts=tuple(NormalDist().inv_cdf(each) if each else None for each in shares),
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
        layer_inputs=layer_inputs_config(config, act, may_lack_tokens=True),
        altup=AltupConfig(
            num_streams=config.integer("altup_num_inputs"),
            active=config.integer("altup_active_idx", least=0),
            scales_inputs=config.boolean("altup_correct_scale", default=True),
            laurel_rank=config.integer("laurel_rank"),
        ),
    )
    layers = [
        replace(layer, kv_layer_id=kv_layer_id)
        for layer, kv_layer_id in zip(
            model.attention_layers, keys_of_earlier_layers(config, types), strict=True
        )
    ]
    return with_attention_layers(config, model, layers)


def _by_layer(config: ConfigFile, name: str, least: float, most: float) -> list[float]:
    """A number for all layers, or one for each. Raises ConfigError."""
    values, num_layers = config.get(name, 0.0), config.integer("num_hidden_layers")
    values = values if isinstance(values, list) else [values] * num_layers
    if len(values) != num_layers or not all(
        isinstance(each, int | float) and least <= each <= most for each in values
    ):
        raise ConfigError(
            f"{config.path}: {name!r} must be numbers from {least} to {most}, one for each of "
            f"{num_layers} layers, not {values!r}"
        )
    return values
