"""SmolLM 3: Llama, of which some layers do not rotate."""

from __future__ import annotations

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_layer_ropes,
)
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile


def smollm3_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    has_window = config.boolean("use_sliding_window", default=False)
    window = config.optional_integer("sliding_window", None) if has_window else None
    if not has_window:  # transformers' masks would have one, its kernels none
        config.refuse("layer_types", ["full_attention"] * config.integer("num_hidden_layers"))
    model = decoder_config(
        config,
        windows=windows_of_types(config, config.get("layer_types", None), window),
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        mlp=MlpConfig(activation=activation(config)),
    )
    ropes = config.by_layer(
        "no_rope_layers",
        config.get("no_rope_layers", None),
        {0: None, 1: model.rope},  # despite the list's name
        model.num_layers,
    )
    return with_layer_ropes(config, model, ropes)
