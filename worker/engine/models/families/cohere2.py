"""Cohere's Command A and R 7B: layers with a window rotate, the others do not."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, windows_of_types, with_layer_ropes
from worker.engine.models.families.cohere import any_cohere
from worker.engine.models.model_config import ConfigFile


def cohere2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    window = config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, config.get("layer_types", None), window)
    model = any_cohere(config, windows)
    return with_layer_ropes(config, model, [model.rope if each else None for each in windows])
