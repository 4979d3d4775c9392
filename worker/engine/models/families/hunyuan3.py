"""Hunyuan 3: norms of queries and keys, experts chosen by sigmoid with a correction."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_experts
from worker.engine.models.families.deepseek import experts_by_layer, v3_experts
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.model_config import ConfigFile

_NAMES = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "router_scaling_factor",
}
_STORED_NAMES = (
    (".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"),
    (".mlp.gate.", ".mlp.router.gate."),
    (".mlp.shared_experts.", ".mlp.shared_mlp."),
)


def hunyuan3_config(config: ConfigFile) -> DecoderConfig:
    """The layer behind the last, which guesses, is not read. Raises ConfigError."""
    config.refuse("mlp_bias", False)
    config = config.renamed(_NAMES).replaced(n_group=1, topk_group=1, norm_topk_prob=True)
    model = decoder_config(
        config, has_attention_bias=config.boolean("attention_bias", default=False)
    )
    model = replace(
        model,
        head_norm=HeadNormConfig(),
        stored_names=_STORED_NAMES,
        unread_prefixes=(f"model.layers.{model.num_layers}.",),
    )
    return with_experts(config, model, v3_experts(config), experts_by_layer(config))
