"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.model_config import ConfigFile


def seed_oss_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_qkv_bias=config.boolean("attention_bias", default=True),
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        head_dim=config.integer("head_dim", 128),
    )
    return replace(model, has_output_bias=config.boolean("attention_out_bias", default=False))
