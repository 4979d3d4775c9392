"""EXAONE 4: norms behind attention and MLP; with windows, their layers alone rotate."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_layer_ropes,
)
from worker.engine.models.layer_config import POST_NORMS, HeadNormConfig, MlpConfig, activation
from worker.engine.models.model_config import ConfigFile


def exaone4_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    window = config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, config.get("layer_types", None), window)
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=windows,
        mlp=MlpConfig(activation=activation(config)),
    )
    model = replace(model, norm_places=POST_NORMS, head_norm=HeadNormConfig())
    rotates = [window is None or each is not None for each in windows]
    return with_layer_ropes(config, model, [model.rope if each else None for each in rotates])
