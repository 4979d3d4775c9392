"""Cohere's Command R: attention and MLP beside each other behind one LayerNorm."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, Scales, decoder_config
from worker.engine.models.layer_config import (
    PARALLEL,
    HeadNormConfig,
    MlpConfig,
    NormConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import rope_config

HEAD_NORM = HeadNormConfig(scope="own")


def cohere_config(config: ConfigFile) -> DecoderConfig:
    """The first. Raises ConfigError, as the other readers do."""
    model = any_cohere(config)
    has_head_norm = config.boolean("use_qk_norm", default=False)
    return replace(model, head_norm=HEAD_NORM if has_head_norm else None)


def any_cohere(config: ConfigFile, windows: tuple[int | None, ...] | None = None) -> DecoderConfig:
    """What all of them share."""
    model = decoder_config(
        config,
        windows=windows,
        has_attention_bias=config.boolean("attention_bias", default=False),
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_eps")),
        rope=replace(rope_config(config), has_neighbours=True),
        mlp=MlpConfig(activation=activation(config)),
        scales=Scales(logits_divisor=1.0 / config.positive_number("logit_scale")),
    )
    return replace(model, norm_places=PARALLEL, is_parallel=True)
