"""Kimi Linear: KDA in most layers, attention over latents without positions in the others."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, with_recurrent_layers
from worker.engine.models.families.deepseek import experts_by_layer, v3_decoder_config
from worker.engine.models.layer_config import MlpConfig
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import KimiDeltaConfig, layers_that_attend

_NAMES = {
    "max_position_embeddings": "model_max_length",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "num_experts_per_tok": "num_experts_per_token",
    "scoring_func": "moe_router_activation_func",
}
_EXPERT = MlpConfig(up=("w1", "w3"), down="w2")


def kimi_linear_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    config = config.renamed(_NAMES)
    config.refuse("tie_word_embeddings", False)
    config.refuse("mla_use_nope", True)
    config.refuse("moe_layer_freq", 1)
    has_experts = experts_by_layer(config)
    config.refuse("hidden_act", "silu")  # of KDA, too
    model = v3_decoder_config(config, has_experts, mlp=_EXPERT)
    model = replace(
        model,
        layer_ropes=(None,) * model.num_layers,
        stored_names=((".recurrent.", ".self_attn."), (".mlp.", ".block_sparse_moe.")),
    )
    delta_net = KimiDeltaConfig(
        hidden_size=model.hidden_size,
        num_heads=config.integer("linear_num_heads"),
        head_dim=config.integer("linear_head_dim"),
        kernel_size=config.integer("linear_conv_kernel_dim", least=2),
        norm_eps=config.number("rms_norm_eps"),
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    return with_recurrent_layers(model, [None if each else delta_net for each in attends])
