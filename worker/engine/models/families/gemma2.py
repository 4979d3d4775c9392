"""Gemma 2 and 3, VaultGemma: norms on both sides, windows by layer; soft caps, or head norms."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, windows_of_types, with_layer_ropes
from worker.engine.models.families.gemma import any_gemma
from worker.engine.models.layer_config import HeadNormConfig, NormPlaces
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import RopeConfig, rope_config, ropes_by_layer

BOTH_SIDES = NormPlaces(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def gemma2_config(config: ConfigFile) -> DecoderConfig:
    """The second. Raises ConfigError, as the other readers do."""
    soft_cap = config.optional_number("attn_logit_softcapping")
    return _later_gemma(config, rope_config(config), soft_cap)


def gemma3_config(config: ConfigFile) -> DecoderConfig:
    """The third, its text. Its soft cap of attention is one that transformers does not compute."""
    ropes = ropes_by_layer(config)
    model = _later_gemma(config, ropes.main, None)
    return replace(with_layer_ropes(config, model, ropes.layers), head_norm=HeadNormConfig())


def vaultgemma_config(config: ConfigFile) -> DecoderConfig:
    """The second, without norms behind attention and MLP."""
    model = gemma2_config(config)
    return replace(model, norm_places=NormPlaces(before_mlp="pre_feedforward_layernorm"))


def _later_gemma(config: ConfigFile, rope: RopeConfig, soft_cap: float | None) -> DecoderConfig:
    window = config.optional_integer("sliding_window", None)
    model = any_gemma(
        config,
        windows=windows_of_types(config, config.get("layer_types", None), window),
        rope=rope,
        activation_name="hidden_activation",
        attention_scale=config.integer("query_pre_attn_scalar") ** -0.5,
        soft_cap=soft_cap,
    )
    final_cap = config.optional_number("final_logit_softcapping")
    return replace(model, norm_places=BOTH_SIDES, logits_soft_cap=final_cap)
