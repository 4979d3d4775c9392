"""Gemma: weights of norms as distances from one, GELU, embeddings scaled by their size."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, Scales, decoder_config
from worker.engine.models.layer_config import MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile, NotFused
from worker.engine.models.rope_config import RopeConfig, rope_config


def gemma_config(config: ConfigFile) -> DecoderConfig:
    """The first. Raises ConfigError, as the other readers do."""
    return any_gemma(config, rope=rope_config(config), activation_name="hidden_act")


def any_gemma(
    config: ConfigFile,
    *,
    windows: tuple[int | None, ...] | None = None,
    rope: RopeConfig,
    activation_name: str,
    attention_scale: float | None = None,
    soft_cap: float | None = None,
) -> DecoderConfig:
    """What all of them share."""
    if config.boolean("use_bidirectional_attention", default=False):
        raise NotFused(f"{config.path}: its tokens see later ones")
    return decoder_config(
        config,
        windows=windows,
        has_attention_bias=config.boolean("attention_bias", default=False),
        attention_scale=attention_scale,
        soft_cap=soft_cap,
        norm=NormConfig(eps=config.number("rms_norm_eps"), weight_offset=1.0),
        rope=rope,
        mlp=MlpConfig(activation=activation(config, activation_name)),
        scales=Scales(embedding=config.integer("hidden_size") ** 0.5, is_embedding_rounded=True),
    )
