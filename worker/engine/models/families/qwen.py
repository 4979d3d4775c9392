"""Qwen 2 and 3, the dense ones."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, windows_of_types
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile


def qwen2_config(config: ConfigFile) -> DecoderConfig:
    """Qwen 2 and 2.5."""
    return decoder_config(config, windows=qwen_windows(config), has_qkv_bias=True)


def qwen3_config(config: ConfigFile) -> DecoderConfig:
    """The dense models of Qwen 3."""
    model = decoder_config(
        config,
        windows=qwen_windows(config),
        has_attention_bias=config.boolean("attention_bias", default=False),
        head_dim=config.integer("head_dim", 128),
    )
    return replace(model, head_norm=HeadNormConfig())


def qwen_windows(config: ConfigFile) -> tuple[int | None, ...]:
    """`layer_types` says which layers have a window; where it is missing, the first have none."""
    num_layers = config.integer("num_hidden_layers")
    if not config.boolean("use_sliding_window", default=False):
        window = None
    else:
        default = None if "sliding_window" in config else 4096
        window = config.optional_integer("sliding_window", default)
    layer_types = config.get("layer_types", None)
    if layer_types is None:
        num_full = config.integer("max_window_layers", 28, least=0)
        return tuple(window if idx >= num_full else None for idx in range(num_layers))
    return windows_of_types(config, layer_types, window)
