"""Granite 3, the dense ones: Llama with scales of its own. GraniteSWA, HyperCLOVA X."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    windows_of_types,
    with_layer_ropes,
)
from worker.engine.models.layer_config import NormPlaces
from worker.engine.models.model_config import ConfigFile, NotFused

_POST_NORMS = NormPlaces(after_attention="post_norm1", after_mlp="post_norm2")


def granite_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    return _any_granite(config)


def granite_swa_config(config: ConfigFile) -> DecoderConfig:
    """The config with sinks, windows by layer, and rotations by layer or none. Raises
    ConfigError.
    """
    window, types = config.optional_integer("sliding_window", None), config.get("layer_types", None)
    windows = windows_of_types(config, types, window)
    model = _any_granite(config, windows)
    thetas = config.get("layer_rope_theta", None)
    if (
        not isinstance(thetas, list)
        or len(thetas) != model.num_layers
        or not all(isinstance(each, int | float) and each >= 0 for each in thetas)
    ):
        raise ConfigError(
            f"{config.path}: 'layer_rope_theta' must be a number, or 0, for each of "
            f"{model.num_layers} layers, not {thetas!r}"
        )
    ropes = [replace(model.rope, theta=float(each)) if each else None for each in thetas]
    return replace(with_layer_ropes(config, model, ropes), has_sinks=True)


def hyperclovax_config(config: ConfigFile) -> DecoderConfig:
    """The config with norms behind attention and MLP; logits are multiplied. Raises ConfigError."""
    divisor = 1.0 / config.positive_number("logits_scaling", 1.0)
    model = _any_granite(config, logits_divisor=divisor)
    if not config.boolean("use_post_norm", default=True):
        return model
    if config.number("residual_multiplier", 1.0) != 1.0:
        raise NotFused(f"{config.path}: 'residual_multiplier' scales what norms give")
    return replace(model, norm_places=_POST_NORMS)


def _any_granite(
    config: ConfigFile,
    windows: tuple[int | None, ...] | None = None,
    logits_divisor: float | None = None,
) -> DecoderConfig:
    return decoder_config(
        config,
        windows=windows,
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        attention_scale=config.positive_number("attention_multiplier", 1.0),
        scales=Scales(
            embedding=config.positive_number("embedding_multiplier", 1.0),
            residual=config.positive_number("residual_multiplier", 1.0),
            logits_divisor=logits_divisor or config.positive_number("logits_scaling", 1.0),
        ),
    )
