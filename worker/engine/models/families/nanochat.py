"""NanoChat: norms without weights, of embeddings too; pairs that turn the other way round."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.layer_config import HeadNormConfig, MlpConfig, NormConfig, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import rope_config


def nanochat_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        has_attention_bias=config.boolean("attention_bias", default=False),
        norm=NormConfig(eps=config.number("rms_norm_eps"), has_weight=False),
        rope=replace(rope_config(config), is_backwards=True),
        mlp=MlpConfig(activation=activation(config), is_gated=False, up=("fc1",), down="fc2"),
    )
    return replace(
        model,
        norms_embeddings=True,
        head_norm=HeadNormConfig(scope="bare", is_after_rope=True),
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
    )
