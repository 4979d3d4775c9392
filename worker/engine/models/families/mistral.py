"""Mistral, Ministral, and Ministral 3."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    windows_of_types,
)
from worker.engine.models.layer_config import QueryGrowth
from worker.engine.models.model_config import ConfigFile


def mistral_config(config: ConfigFile) -> DecoderConfig:
    """Mistral 7B and its kind: one window for all layers, or none."""
    config.refuse("layer_types")
    windows = same_window(config, _window(config))
    return decoder_config(config, windows=windows)


def ministral_config(config: ConfigFile) -> DecoderConfig:
    """The same, with windows by layer. Code World Model is made so, too, perhaps with biases."""
    window = _window(config)
    layer_types = config.get("layer_types", None)
    if layer_types is None:
        windows = same_window(config, window)
    else:
        windows = windows_of_types(config, layer_types, window)
    has_mlp_bias = config.boolean("mlp_bias", default=False)
    return decoder_config(config, windows=windows, has_mlp_bias=has_mlp_bias)


def ministral3_config(config: ConfigFile) -> DecoderConfig:
    """The first, whose queries grow beyond the length that it was trained for."""
    window = config.optional_integer("sliding_window", None)
    windows = same_window(config, window)
    return with_query_growth(config, decoder_config(config, windows=windows))


def with_query_growth(config: ConfigFile, model: DecoderConfig) -> DecoderConfig:
    """`model`, with the growth that its rope's parameters name, if they do. Raises ConfigError."""
    parameters = config.section("rope_parameters")
    slope = None if parameters is None else parameters.optional_number("llama_4_scaling_beta")
    if parameters is None or slope is None:
        return model
    step = parameters.integer("original_max_position_embeddings")
    growth = QueryGrowth(step=step, slope=slope, start=0, is_of_rotated=True)
    return replace(model, query_growth=growth)


def _window(config: ConfigFile) -> int | None:
    default = None if "sliding_window" in config else 4096  # null means none
    return config.optional_integer("sliding_window", default)
