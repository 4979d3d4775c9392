"""SmolLM 3: Llama, of which some layers do not rotate."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_layer_ropes,
)
from worker.engine.models.layer_config import MlpConfig, activation
from worker.engine.models.model_config import ConfigFile


def smollm3_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    has_window = config.boolean("use_sliding_window", default=False)
    window = config.optional_integer("sliding_window", None) if has_window else None
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=windows_of_types(config, config.get("layer_types", None), window),
        has_attention_bias=config.boolean("attention_bias", default=False),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        mlp=MlpConfig(activation=activation(config)),
    )
    rotates = config.get("no_rope_layers", None)  # despite its name: 1 where a layer rotates
    if not isinstance(rotates, list) or len(rotates) != model.num_layers:
        raise ConfigError(
            f"{config.path}: 'no_rope_layers' must say 0 or 1 for each of {model.num_layers} "
            f"layers, not {rotates!r}"
        )
    return with_layer_ropes(config, model, [model.rope if each else None for each in rotates])
