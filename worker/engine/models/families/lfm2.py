"""LFM2: short convolutions, attention in some layers, experts in some."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    with_experts,
    with_recurrent_layers,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import LLAMA_MLP, HeadNormConfig, NormConfig, NormPlaces
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import ShortConvConfig, layers_that_attend

_PLACES = NormPlaces(before_attention="operator_norm", before_mlp="ffn_norm")
_STORED_NAMES = (
    ("model.norm.", "model.embedding_norm."),
    (".recurrent.", ".conv."),
    (".self_attn.o_proj.", ".self_attn.out_proj."),
    (".mlp.gate.e_score_correction_bias", ".feed_forward.expert_bias"),
    (".mlp.", ".feed_forward."),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
)


def lfm2_config(config: ConfigFile) -> DecoderConfig:
    """The dense ones. Raises ConfigError, as the other readers do."""
    return _with_convolutions(config, _intermediate_size(config))


def lfm2_moe_config(config: ConfigFile) -> DecoderConfig:
    """Experts chosen by sigmoid behind the first layers."""
    size = config.integer("intermediate_size")
    model = _with_convolutions(config, size)
    experts = ExpertsConfig(
        num_experts=config.integer("num_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=model.hidden_size,
        intermediate_size=config.integer("moe_intermediate_size"),
        scoring="sigmoid",
        has_correction=config.boolean("use_expert_bias", default=True),
        is_normed=config.boolean("norm_topk_prob", default=True),
        norm_eps=1e-6,
        scale=config.positive_number("routed_scaling_factor", 1.0),
    )
    num_dense = config.integer("num_dense_layers", least=0)
    has_experts = [layer_id >= num_dense for layer_id in range(model.num_layers)]
    return with_experts(config, model, experts, has_experts)


def _with_convolutions(config: ConfigFile, intermediate_size: int) -> DecoderConfig:
    """The config with dense layers."""
    model = decoder_config(
        config,
        norm=NormConfig(eps=config.number("norm_eps")),
        mlp=LLAMA_MLP,
        intermediate_size=intermediate_size,
    )
    model = replace(
        model,
        norm_places=_PLACES,
        head_norm=HeadNormConfig(modules=("q_layernorm", "k_layernorm")),
        stored_names=_STORED_NAMES,
    )
    convolution = ShortConvConfig(
        num_channels=model.hidden_size,
        kernel_size=config.integer("conv_L_cache", least=2),
        has_bias=config.boolean("conv_bias", default=False),
    )
    attends = layers_that_attend(config, model.num_layers, "conv")
    return with_recurrent_layers(model, [None if each else convolution for each in attends])


def _intermediate_size(config: ConfigFile) -> int:
    """Two thirds of what the file says, rounded up, unless it says that they are meant."""
    size = config.integer("intermediate_size")
    if not config.boolean("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    if config.get("block_ffn_dim_multiplier", None) is None:
        return size
    multiple = config.integer("block_multiple_of", 256)
    size = int(config.positive_number("block_ffn_dim_multiplier") * size)
    return -(-size // multiple) * multiple
