"""OLMo 2 and 3: norms behind attention and MLP, and of all queries, or keys, at once."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    windows_of_types,
    with_layer_ropes,
)
from worker.engine.models.layer_config import POST_NORMS, HeadNormConfig, MlpConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import RopeConfig, rope_config, ropes_by_layer


def olmo2_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """The second. Raises ConfigError, as the other readers do."""
    windows = same_window(config, None)
    return _olmo(config, architecture, eos_token_ids, windows, rope_config(config))


def olmo3_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """The third: windows, and a rope for each type of layer."""
    ropes = ropes_by_layer(config)
    window = config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, config.get("layer_types", None), window)
    model = _olmo(config, architecture, eos_token_ids, windows, ropes.main)
    return with_layer_ropes(config, model, ropes.layers)


def _olmo(
    config: ConfigFile,
    architecture: str,
    eos_token_ids: tuple[int, ...],
    windows: tuple[int | None, ...],
    rope: RopeConfig,
) -> DecoderConfig:
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=windows,
        has_attention_bias=config.boolean("attention_bias", default=False),
        rope=rope,
        mlp=MlpConfig(activation=activation(config)),
    )
    return replace(model, norm_places=POST_NORMS, head_norm=HeadNormConfig(scope="whole"))
