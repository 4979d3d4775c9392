"""StableLM: LayerNorm, a part of each head rotated, perhaps attention and MLP beside each other."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import (
    LLAMA_PLACES,
    PARALLEL,
    HeadNormConfig,
    MlpConfig,
    NormConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config

HEAD_NORM = HeadNormConfig(modules=("q_layernorm", "k_layernorm"), scope="modules")


def stablelm_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_qkv_bias=config.boolean("use_qkv_bias", default=False),
        head_dim=config.integer("hidden_size") // config.integer("num_attention_heads"),
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_eps"), has_bias=True),
        rope=partial_rope_config(config),
        mlp=MlpConfig(activation=activation(config)),
    )
    is_parallel = config.boolean("use_parallel_residual", default=False)
    return replace(
        model,
        norm_places=PARALLEL if is_parallel else LLAMA_PLACES,
        is_parallel=is_parallel,
        head_norm=HEAD_NORM if config.boolean("qk_layernorm", default=False) else None,
    )
