"""Phi 3 and 4: projections that are stored as one, and perhaps a part of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, same_window
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def phi3_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the others do."""
    model = decoder_config(
        config,
        windows=same_window(config, config.optional_integer("sliding_window", None)),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config), up=("gate_up_proj",)),
    )
    return replace(model, stored_qkv=("qkv_proj",))
