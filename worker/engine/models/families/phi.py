"""Phi 1, 1.5 and 2: attention and MLP beside each other behind one LayerNorm, biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import (
    PARALLEL,
    HeadNormConfig,
    MlpConfig,
    NormConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config

HEAD_NORM = HeadNormConfig(modules=("q_layernorm", "k_layernorm"), has_bias=True)


def phi_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=True,
        has_mlp_bias=True,
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_eps"), has_bias=True),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("fc1",), down="fc2"),
    )
    return replace(
        model,
        norm_places=PARALLEL,
        is_parallel=True,
        has_head_bias=True,
        head_norm=HEAD_NORM if config.boolean("qk_layernorm", default=False) else None,
        stored_names=((".o_proj.", ".dense."), ("model.norm.", "model.final_layernorm.")),
    )
