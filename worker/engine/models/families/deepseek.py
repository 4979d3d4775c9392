"""DeepSeek V2 and V3, and their kind: attention over latents, experts behind the first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.latent import latent_decoder_config
from worker.engine.models.families.mistral import with_query_growth
from worker.engine.models.layer_config import LLAMA_MLP, LLAMA_PLACES, MlpConfig
from worker.engine.models.model_config import ConfigFile

_TYPES_OF_MLPS = {"dense": False, "sparse": True}


def deepseek_v2_config(config: ConfigFile) -> DecoderConfig:
    """Experts chosen by softmax. Raises ConfigError, as the other readers do."""
    config.refuse("scoring_func", "softmax")
    config.refuse("norm_topk_prob", False)  # the released code would norm them, that of today not
    model = latent_decoder_config(
        config, has_neighbours=True, has_mlp_bias=config.boolean("mlp_bias", default=False)
    )
    experts = _experts(config, "softmax")
    method = config.get("topk_method", "greedy")
    if method == "group_limited_greedy":
        experts = _grouped(config, experts)
    elif method != "greedy":
        raise ConfigError(
            f"{config.path}: topk_method={method!r} is not supported: greedy and "
            "group_limited_greedy are"
        )
    return with_experts(config, model, experts, layers_behind_dense(config))


def deepseek_v3_config(config: ConfigFile) -> DecoderConfig:
    """And R1, V3.1, Kimi K2: experts chosen by sigmoid, with a correction."""
    config.refuse("topk_method", "noaux_tc")
    return v3_decoder_config(config, layers_behind_dense(config))


def axk1_config(config: ConfigFile) -> DecoderConfig:
    """A.X K1: V3 with a norm behind experts."""
    places = replace(LLAMA_PLACES, after_mlp="post_mlp_layernorm")
    return replace(v3_decoder_config(config, experts_by_layer(config)), expert_norm_places=places)


def mistral4_config(config: ConfigFile) -> DecoderConfig:
    """Mistral 4: V3's attention with queries that grow, experts chosen by softmax."""
    parameters = config.section("rope_parameters")
    head_dim = config.integer("qk_rope_head_dim") + config.integer("qk_nope_head_dim")
    share = config.integer("qk_rope_head_dim") / head_dim
    if parameters is not None:  # of all that a head has
        parameters.refuse("partial_rotary_factor", share)
        values = config.get("rope_parameters", {}) | {"partial_rotary_factor": None}
        config = config.replaced(rope_parameters=values)
    experts = replace(
        _grouped(config, _experts(config, "softmax")),
        num_group_scores=2,
        is_normed=config.boolean("norm_topk_prob", default=True),
    )
    model = with_query_growth(config, latent_decoder_config(config))
    return with_experts(config, model, experts, layers_behind_dense(config))


def glm4_moe_lite_config(config: ConfigFile) -> DecoderConfig:
    """GLM 4.7 Flash: V3 in other words."""
    return v3_decoder_config(config, experts_by_layer(config))


def experts_by_layer(config: ConfigFile) -> list[bool]:
    """Whether a layer has some. Raises ConfigError."""
    types, num_layers = config.get("mlp_layer_types", None), config.integer("num_hidden_layers")
    return config.by_layer("mlp_layer_types", types, _TYPES_OF_MLPS, num_layers)


def v3_decoder_config(
    config: ConfigFile,
    has_experts: list[bool],
    mlp: MlpConfig = LLAMA_MLP,  # of an expert
) -> DecoderConfig:
    """Experts chosen by sigmoid, with a correction. Raises ConfigError."""
    config.refuse("scoring_func", "sigmoid")
    model = latent_decoder_config(config)
    return with_experts(config, model, replace(v3_experts(config), mlp=mlp), has_experts)


def v3_experts(config: ConfigFile) -> ExpertsConfig:
    """Chosen by sigmoid, with a correction, in groups. Raises ConfigError."""
    return replace(
        _grouped(config, _experts(config, "sigmoid")),
        num_group_scores=2,
        has_correction=True,
        is_normed=config.boolean("norm_topk_prob", default=True),
    )


def _experts(config: ConfigFile, scoring: Literal["softmax", "sigmoid"]) -> ExpertsConfig:
    size = config.integer("moe_intermediate_size")
    return ExpertsConfig(
        num_experts=config.integer("n_routed_experts"),
        num_chosen=config.integer("num_experts_per_tok"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=size,
        scoring=scoring,
        scale=config.positive_number("routed_scaling_factor"),
        shared_size=size * config.integer("n_shared_experts"),
    )


def _grouped(config: ConfigFile, experts: ExpertsConfig) -> ExpertsConfig:
    return replace(
        experts,
        num_groups=config.integer("n_group"),
        num_chosen_groups=config.integer("topk_group"),
    )


def layers_behind_dense(config: ConfigFile) -> list[bool]:
    """Whether a layer has experts: the first have none. Raises ConfigError."""
    config.refuse("moe_layer_freq", 1)
    num_dense = config.integer("first_k_dense_replace", least=0)
    return [idx >= num_dense for idx in range(config.integer("num_hidden_layers"))]
