"""AFMoE (Trinity): norms on both sides, gates of attention; layers with a window alone rotate."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    QKV_PARTS,
    DecoderConfig,
    Scales,
    decoder_config,
    windows_of_types,
    with_experts,
    with_layer_ropes,
)
from worker.engine.models.families.deepseek import v3_experts
from worker.engine.models.layer_config import HeadNormConfig, NormPlaces
from worker.engine.models.model_config import ConfigFile

_NAMES = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "route_scale",
}
_NORMS = NormPlaces(
    after_attention="post_attention_layernorm",
    before_mlp="pre_mlp_layernorm",
    after_mlp="post_mlp_layernorm",
)
_STORED_NAMES = (
    (".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"),
    (".mlp.gate.", ".mlp.router.gate."),
)


def afmoe_config(config: ConfigFile) -> DecoderConfig:
    """Experts chosen by sigmoid, with a correction. Raises ConfigError."""
    config.refuse("attention_bias", False)
    config = config.renamed(_NAMES).replaced(n_group=1, topk_group=1, norm_topk_prob=True)
    types, window = config.get("layer_types", None), config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, types, window)
    is_scaled = config.boolean("mup_enabled", default=False)
    embedding = config.integer("hidden_size") ** 0.5 if is_scaled else 1.0
    scales = Scales(embedding=embedding)
    model = decoder_config(config, windows=windows, scales=scales)
    model = replace(
        with_layer_ropes(config, model, [model.rope if each else None for each in windows]),
        norm_places=_NORMS,
        head_norm=HeadNormConfig(),
        has_attention_gate=True,
        stored_qkv=(*QKV_PARTS, "gate_proj"),
        stored_names=_STORED_NAMES,
    )
    num_dense = config.integer("num_dense_layers", least=0)
    has_experts = [layer_id >= num_dense for layer_id in range(model.num_layers)]
    return with_experts(config, model, v3_experts(config), has_experts)
