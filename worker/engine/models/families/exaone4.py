"""EXAONE 4: norms behind attention and MLP; with windows, their layers alone rotate. K-EXAONE."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.families.deepseek import experts_by_layer, v3_experts
from worker.engine.models.layer_config import POST_NORMS, HeadNormConfig, MlpConfig, activation
from worker.engine.models.model_config import ConfigFile

_NAMES = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_STORED_NAMES = ((".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),)


def exaone4_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = _any_exaone(config)
    return replace(model, norm_places=POST_NORMS)


def exaone_moe_config(config: ConfigFile) -> DecoderConfig:
    """K-EXAONE: Llama's places of norms, experts as DeepSeek V3. Raises ConfigError."""
    config = config.renamed(_NAMES)
    model = _any_exaone(config)
    model = replace(model, stored_names=_STORED_NAMES, unread_prefixes=("mtp.",))
    return with_experts(config, model, v3_experts(config), experts_by_layer(config))


def _any_exaone(config: ConfigFile) -> DecoderConfig:
    window = config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, config.get("layer_types", None), window)
    model = decoder_config(config, windows=windows, mlp=MlpConfig(activation=activation(config)))
    model = replace(model, head_norm=HeadNormConfig())
    rotates = [window is None or each is not None for each in windows]
    return with_layer_ropes(config, model, [model.rope if each else None for each in rotates])
