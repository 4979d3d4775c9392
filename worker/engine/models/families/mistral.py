"""Mistral, and Ministral."""

from __future__ import annotations

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    windows_of_types,
)
from worker.engine.models.model_config import ConfigFile


def mistral_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Mistral 7B and its kind: one window for all layers, or none."""
    config.refuse("layer_types")
    windows = same_window(config, _window(config))
    return decoder_config(config, architecture, eos_token_ids, windows=windows)


def ministral_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """The same, with windows by layer."""
    window = _window(config)
    layer_types = config.get("layer_types", None)
    if layer_types is None:
        windows = same_window(config, window)
    else:
        windows = windows_of_types(config, layer_types, window)
    return decoder_config(config, architecture, eos_token_ids, windows=windows)


def _window(config: ConfigFile) -> int | None:
    default = None if "sliding_window" in config else 4096  # null means none
    return config.optional_integer("sliding_window", default)
