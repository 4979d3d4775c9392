"""GLM 4: gates and what they are multiplied with in one matrix, a part of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import MlpConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config

BOTH_SIDES = NormPlaces(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def glm_config(config: ConfigFile) -> DecoderConfig:
    """The 9B of 2024. Raises ConfigError, as the other readers do."""
    return decoder_config(
        config,
        has_qkv_bias=config.boolean("attention_bias", default=True),
        rope=partial_rope_config(config, has_neighbours=True),
        mlp=MlpConfig(activation=activation(config), up=("gate_up_proj",)),
    )


def glm4_config(config: ConfigFile) -> DecoderConfig:
    """GLM 4 of 2025 (0414): norms on both sides of attention and MLP."""
    return replace(glm_config(config), norm_places=BOTH_SIDES)
