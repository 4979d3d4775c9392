"""GLM 4.5 and dots.llm1: experts as DeepSeek V3 has them, behind heads of keys and values."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    windows_of_types,
    with_experts,
)
from worker.engine.models.families.deepseek import layers_behind_dense, v3_experts
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def glm4_moe_config(config: ConfigFile) -> DecoderConfig:
    """GLM 4.5 to 4.7. Raises ConfigError."""
    model = decoder_config(
        config,
        has_qkv_bias=config.boolean("attention_bias", default=False),
        rope=partial_rope_config(config),
    )
    has_norm = config.boolean("use_qk_norm", default=False)
    model = replace(model, head_norm=HeadNormConfig() if has_norm else None)
    return with_experts(config, model, v3_experts(config), layers_behind_dense(config))


def dots1_config(config: ConfigFile) -> DecoderConfig:
    """Windows by layer, norms of queries and keys. Raises ConfigError."""
    window = config.optional_integer("sliding_window", None)
    model = decoder_config(
        config,
        windows=windows_of_types(config, config.get("layer_types", None), window),
        has_attention_bias=config.boolean("attention_bias", default=False),
    )
    model = replace(model, head_norm=HeadNormConfig())
    return with_experts(config, model, v3_experts(config), layers_behind_dense(config))
