"""What a configuration says matters: without it the families' tiny models give other logits."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError
from tests.worker.engine.families import (
    DEEPSEEK_YARN,
    FUSED,
    FUSED_IN_TORCH,
    GENERAL,
    LATENT,
    LLAMA3_ROPE,
    MINISTRAL_3_ROPE,
    MIXTURES,
    PARTIAL_ROPE,
    RECURRENT,
    WINDOW,
    YARN_ROPE,
)
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.models import decoder, norms
from worker.engine.models.decoder_config import QKV_PARTS, DecoderConfig, with_experts
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families import (
    afmoe,
    aria,
    deepseek,
    ernie_moe,
    exaone4,
    glm4_moe,
    gpt_oss,
    granite_hybrid,
    granite_moe,
    hunyuan3,
    hunyuan_moe,
    lfm2,
    llama4,
    mimo_v2,
    mixtral,
    nemotron_h,
    qwen3_5,
    qwen_moe,
)
from worker.engine.models.families.gemma2 import BOTH_SIDES
from worker.engine.models.families.phi import HEAD_NORM as PHI_HEAD_NORM
from worker.engine.models.latent import latent_mixer
from worker.engine.models.layer_config import (
    LLAMA_PLACES,
    HeadNormConfig,
    MlpConfig,
    NormPlaces,
    SharedBlocksConfig,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.registry import FUSED_ARCHITECTURES, read_model_config
from worker.engine.models.rope_config import RopeConfig

PROMPT = random_prompt(150, seed=4)  # beyond windows, and what ropes were trained for
FULL = {"layer_types": ["full_attention", "full_attention"]}
SLIDING = {"layer_types": ["sliding_attention", "sliding_attention"]}
FULL_ROPE = {"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}
GEMMA_4_LOCAL = {"rope_type": "default", "rope_theta": 1e4}
GEMMA_4_FULL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
FAMILIES = FUSED | FUSED_IN_TORCH | MIXTURES | RECURRENT | LATENT | GENERAL
# Family -> what is switched off, each by itself.
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "llama linear": [{"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}],
    "llama llama3": [{"rope_parameters": LLAMA3_ROPE | {"factor": 1.0}}],
    "llama yarn": [
        {"rope_parameters": YARN_ROPE | {"factor": 1.0}},
        {"rope_parameters": YARN_ROPE | {"attention_factor": 1.0}},
    ],
    "mistral window": [{"sliding_window": None}],
    "ministral": [FULL],
    "qwen2 windows": [{"use_sliding_window": False, **FULL}],
    "qwen3 windows": [FULL],
    "cwm": [FULL],
    "granite swa": [
        {"sliding_window": 400},
        {"layer_rope_theta": [1e4, 1e4, 1e2]},
        {"layer_rope_theta": [0, 1e4, 1e4]},
    ],
    "hyperclovax": [{"logits_scaling": 1.0}, {"embedding_multiplier": 1.0}],
    "granite": [
        {"attention_multiplier": 1.0},
        {"embedding_multiplier": 1.0},
        {"logits_scaling": 1.0},
        {"residual_multiplier": 1.0},
    ],
    "apertus": [{"rope_parameters": LLAMA3_ROPE | {"factor": 1.0}}],
    "arcee": [{"hidden_act": "gelu"}],
    "biogpt": [{"scale_embedding": False}, {"hidden_act": "relu"}],
    "falcon": [{"activation": "relu"}],
    "falcon 11b": [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    "gptj": [{"rotary_dim": 8}, {"activation_function": "relu"}],
    "gpt2 by layer": [
        {"scale_attn_by_inverse_layer_idx": False},
        {"scale_attn_weights": True},
        {"activation_function": "gelu_new"},
    ],
    "gpt_bigcode": [{"scale_attn_weights": False}, {"activation_function": "relu"}],
    "gpt_neox": [{"use_parallel_residual": False}, {"hidden_act": "relu"}, FULL_ROPE],
    "olmo": [{"clip_qkv": None}],
    "flex_olmo": [{"hidden_act": "silu"}],
    "ministral3": [
        {"hidden_act": "silu"},
        {"rope_parameters": MINISTRAL_3_ROPE | {"llama_4_scaling_beta": None}},
        {"rope_parameters": MINISTRAL_3_ROPE | {"factor": 1.0}},
        {"rope_parameters": MINISTRAL_3_ROPE | {"mscale": 1.3}},
    ],
    "ministral3 window": [{"sliding_window": None}],
    "nanochat": [{"final_logit_softcapping": None}, {"hidden_act": "gelu"}],
    "opt": [{"activation_function": "gelu"}],
    "persimmon": [FULL_ROPE, {"hidden_act": "relu"}],
    "phi": [FULL_ROPE, {"hidden_act": "relu"}],
    "vaultgemma": [
        FULL,
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 16},
    ],
    "cohere": [{"logit_scale": 1.0}],
    "cohere2": [{"sliding_window": 400}, {"sliding_window": 400, **SLIDING}],
    "exaone4": [{"sliding_window": 400}, {"sliding_window": None, **FULL}],
    "gemma": [{"hidden_act": "silu"}],
    "gemma2": [
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 16},
        {"hidden_activation": "silu"},
        FULL,
    ],
    "gemma3": [
        {"layer_types": ["full_attention"] * 3},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 16},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ],
    "deepseek_v3 dense": [
        {"rope_parameters": DEEPSEEK_YARN | {"factor": 1.0}},
        {"rope_parameters": DEEPSEEK_YARN | {"mscale": 1.3}},
        {"rope_parameters": DEEPSEEK_YARN | {"mscale_all_dim": None}},
        {"rope_interleave": False},
    ],
    "deepseek_v3 dense biases": [{"rope_interleave": True}],
    "deepseek_v2": [
        {"routed_scaling_factor": 1.0},
        {"num_experts_per_tok": 2},
        {"rope_parameters": DEEPSEEK_YARN | {"mscale_all_dim": None}},
    ],
    "deepseek_v2 groups": [{"topk_method": "greedy"}, {"n_group": 2, "topk_group": 1}],
    "deepseek_v3": [
        {"routed_scaling_factor": 1.0},
        {"norm_topk_prob": False},
        {"n_group": 1, "topk_group": 1},
        {"topk_group": 1},
        {"rope_parameters": DEEPSEEK_YARN | {"factor": 1.0}},
    ],
    "deepseek_v32": [{"index_topk": 400}, {"index_topk": WINDOW - 1}, {"norm_topk_prob": False}],
    "glm_moe_dsa": [{"index_topk": 400}, {"routed_scaling_factor": 1.0}],
    "glm4_moe_lite": [{"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}],
    "minicpm3": [{"scale_emb": 1.0}, {"scale_depth": 2**0.5}, {"dim_model_base": 48}],
    "mistral4": [
        {"n_group": 1, "topk_group": 1},
        {"topk_group": 1},
        {"norm_topk_prob": False},
        {"rope_interleave": False},
        {"rope_parameters": MINISTRAL_3_ROPE | {"llama_4_scaling_beta": None}},
        {"rope_parameters": MINISTRAL_3_ROPE | {"mscale_all_dim": 0.0}},
    ],
    "gemma3n": [
        {"sliding_window": 400},
        {"activation_sparsity_pattern": [0.0] * 6},
        {"activation_sparsity_pattern": [0.95, 0.6, 0.6, 0.0, 0.0, 0.0]},
        {"altup_active_idx": 0},
        {"altup_correct_scale": False},
        {"final_logit_softcapping": 1e6},  # transformers has none without
        {"hidden_activation": "silu"},
    ],
    "gemma4": [
        {"sliding_window": 400},
        {"final_logit_softcapping": None},
        {"hidden_activation": "silu"},
        *(
            {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
            for full, local in (
                (GEMMA_4_LOCAL, GEMMA_4_LOCAL),
                (GEMMA_4_FULL | {"partial_rotary_factor": 1.0}, GEMMA_4_LOCAL),
                (GEMMA_4_FULL | {"factor": 8.0}, GEMMA_4_LOCAL),
                (GEMMA_4_FULL, GEMMA_4_LOCAL | {"rope_theta": 1e2}),
            )
        ),
    ],
    "gemma4 experts": [{"top_k_experts": 2}],
    "glm4": [{"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}],
    "hunyuan alpha": [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    "lfm2": [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e2}}],
    "bamba": [{"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}],
    "bamba biases": [{"time_step_limit": [0.0, 1e9]}],
    "granite hybrid": [
        {"time_step_limit": [0.0, 1e9]},
        {"position_embedding_type": "rope"},
        {"attention_multiplier": 1.0},
        {"embedding_multiplier": 1.0},
        {"residual_multiplier": 1.0},
        {"logits_scaling": 1.0},
    ],
    "granite hybrid biases": [{"position_embedding_type": None}],
    "qwen3_5": [
        {"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}},
        {"rms_norm_eps": 0.1},
    ],
    "olmo_hybrid": [
        {"linear_allow_neg_eigval": False},
        {"rms_norm_eps": 0.1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ],
    "lfm2 biases": [{"norm_eps": 0.1}],
    "falcon_h1": [
        {"embedding_multiplier": 1.0},
        {"lm_head_multiplier": 1.0},
        {"mlp_multipliers": [1.0, 1.7]},
        {"mlp_multipliers": [0.6, 1.0]},
        {"key_multiplier": 1.0},
        {"attention_in_multiplier": 1.0},
        {"attention_out_multiplier": 1.0},
        {"ssm_in_multiplier": 1.0},
        {"ssm_out_multiplier": 1.0},
        {"ssm_multipliers": [1.0, 0.4, 2.2, 1.5, 0.7]},
        {"ssm_multipliers": [0.6, 1.0, 2.2, 1.5, 0.7]},
        {"ssm_multipliers": [0.6, 0.4, 1.0, 1.5, 0.7]},
        {"ssm_multipliers": [0.6, 0.4, 2.2, 1.0, 0.7]},
        {"ssm_multipliers": [0.6, 0.4, 2.2, 1.5, 1.0]},
        {"time_step_limit": [0.0, 1e9]},
    ],
    "falcon_h1 norm": [{"mamba_norm_before_gate": True}],
    "jamba": [{"num_experts_per_tok": 1}],
    "jamba biases": [{"rms_norm_eps": 0.1}],
    "kimi_linear": [{"routed_scaling_factor": 1.0}, {"num_experts_per_token": 2}],
    "kimi_linear groups": [{"moe_renormalize": True}, {"num_expert_group": 1, "topk_group": 1}],
    "zamba2": [{"use_mem_rope": False}, {"time_step_min": 0.001}, {"hidden_act": "silu"}],
    "minimax": [{"rotary_dim": 8}]
    + [
        {f"{layer}_{part}_factor": 1.0}
        for layer in ("full_attn", "linear_attn", "mlp")
        for part in ("alpha", "beta")
    ],
    "mamba": [{"layer_norm_epsilon": 0.1}],
    "mamba2": [{"layer_norm_epsilon": 0.1}, {"time_step_limit": [0.0, 1e9]}],
    "falcon_mamba": [{"mixer_rms_eps": 1.0}],
    "nemotron_h": [{"time_step_min": 0.001}, {"mlp_hidden_act": "silu"}],
    "nemotron_h moe": [
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
        {"topk_group": 4},
        {"mlp_hidden_act": "silu"},
    ],
    "lfm2 moe": [
        {"num_experts_per_tok": 2},
        {"routed_scaling_factor": 1.0},
        {"norm_topk_prob": False},
    ],
    "granite hybrid moe": [{"num_experts_per_tok": 1}, {"residual_multiplier": 1.0}],
    "qwen3_5 moe": [{"num_experts_per_tok": 2}],
    "qwen3_next": [{"norm_topk_prob": False}],
    "qwen3_next shares": [{"norm_topk_prob": True}],
    "llama4": [
        {"attention_chunk_size": 400},
        {"layer_types": ["full_attention"] * 3},
        {"no_rope_layers": [1, 1, 1]},
        {"no_rope_layers": [1, 0, 0]},
        {"attn_temperature_tuning": False},
        {"use_qk_norm": False},
        {"rope_parameters": LLAMA3_ROPE | {"factor": 1.0}},
        {"num_experts_per_tok": 1},
    ],
    "llama4 dense": [{"attn_scale": 0.1}, {"floor_scale": 64}, {"use_qk_norm": True}],
    "nemotron": [
        {"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}},
        {"hidden_act": "silu"},
    ],
    "olmo3 yarn": [
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            }
        }
    ],
    "smollm3": [{"no_rope_layers": [1, 1]}, {"no_rope_layers": [0, 1]}],
    "smollm3 windows": [{"use_sliding_window": False, **FULL}],
    "stablelm": [{"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}],
    "stablelm parallel": [{"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}],
    "dots1": [
        {"layer_types": ["full_attention"] * 3},
        {"topk_group": 1},
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
    ],
    "ernie4_5_moe": [{"moe_k": 2}],
    "glm4_moe": [
        {"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}},
        {"topk_group": 1},
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
    ],
    "gpt_oss": [
        FULL,
        {"swiglu_alpha": 1.0},
        {"swiglu_limit": 7.0},
        {"num_experts_per_tok": 2},
        {"rope_parameters": YARN_ROPE | {"factor": 1.0}},
    ],
    "granitemoe": [
        {"num_experts_per_tok": 1},
        {"attention_multiplier": 1.0},
        {"embedding_multiplier": 1.0},
        {"logits_scaling": 1.0},
        {"residual_multiplier": 1.0},
    ],
    "minimax_m2": [
        {"rotary_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    ],
    "mimo_v2_flash": [
        {"sliding_window": 400},
        {"attention_value_scale": 1.0},
        {"routed_scaling_factor": 1.0},
        {"topk_group": 4},
        {
            "rope_parameters": {
                "full_attention": PARTIAL_ROPE,
                "sliding_attention": PARTIAL_ROPE,
            }
        },
    ],
    "afmoe": [{"sliding_window": 400}, {"mup_enabled": False}, {"route_scale": 1.0}],
    "aria_text": [{"moe_topk": 1}],
    "cohere2_moe": [
        {"logit_scale": 1.0},
        {"sliding_window": 400},
        {"shared_expert_combination_strategy": "sum"},
        {"prefix_dense_sliding_window_pattern": 2},
    ],
    "cohere2_moe sigmoid": [
        {"norm_topk_prob": True},
        {"expert_selection_fn": "softmax"},
        {"shared_expert_combination_strategy": "average"},
    ],
    "exaone_moe": [
        {"sliding_window": 400},
        {"topk_group": 4},
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
    ],
    "granitemoeshared": [{"num_experts_per_tok": 1}, {"residual_multiplier": 1.0}],
    "hy_v3": [{"router_scaling_factor": 1.0}, {"num_experts_per_tok": 2}],
    "solar_open": [{"topk_group": 1}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}],
    "mixtral": [{"num_experts_per_tok": 1}, {"sliding_window": None}],
    "olmoe": [{"norm_topk_prob": True}],
    "qwen2_moe": [{"norm_topk_prob": True}, {"use_sliding_window": False, **FULL}],
    "olmo3": [FULL],
    "phi3 partial": [{"rope_parameters": PARTIAL_ROPE | {"partial_rotary_factor": 1.0}}],
    "phi3 window": [{"sliding_window": None}],
    "minicpm3 longrope": [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    "phi3 longrope": [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    "qwen3_moe": [{"norm_topk_prob": False}],
    "qwen3_moe shares": [{"norm_topk_prob": True}, {"use_sliding_window": False}],
    "starcoder2": [{"sliding_window": None}, {"hidden_act": "silu"}],
}
CASES = [(family, switch) for family, switches in SWITCHES.items() for switch in switches]


Tiny = Callable[[str], tuple[Path, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A family's checkpoint, and its logits."""

    @functools.cache
    def make(family: str) -> tuple[Path, torch.Tensor]:
        model_type, overrides = FAMILIES[family]
        path = save_tiny_model(tmp_path_factory.mktemp("model"), model_type, **overrides)
        return path, logits(path)

    return make


# By night: it shows of the configurations in families.py that the comparison with transformers,
# which every day has, would see the feature.
@pytest.mark.nightly
@pytest.mark.parametrize(("family", "switch"), CASES, ids=lambda each: str(each))
def test_a_feature_that_is_switched_off_moves_the_logits(
    tmp_path: Path, tiny: Tiny, family: str, switch: dict[str, Any]
) -> None:
    path, with_it = tiny(family)
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    config_path = copy / "config.json"
    config_path.write_text(json.dumps(json.loads(config_path.read_text()) | switch))
    without = logits(copy)
    assert (with_it - without).norm() / with_it.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("size", [20, 28], ids=["latents", "queries"])
def test_a_norm_of_latents_that_is_left_out_moves_the_logits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path, with_it = tiny("youtu")

    def without_one(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return x if len(weight) == size else norms.rms_norm(x, weight, eps)

    monkeypatch.setattr(latent_mixer, "rms_norm", without_one)
    assert (with_it - logits(path)).norm() / with_it.norm() > 1e-3


EXPERT_PARTS: list[tuple[str, ModuleType, dict[str, Any]]] = [
    ("dots1", glm4_moe, {"has_correction": False}),
    ("dots1", glm4_moe, {"shared_size": 0}),
    ("ernie4_5_moe", ernie_moe, {"has_correction": False}),
    ("ernie4_5_moe", ernie_moe, {"is_normed": False}),
    ("ernie4_5_moe", ernie_moe, {"shared_size": 0}),
    ("afmoe", afmoe, {"has_correction": False}),
    ("aria_text", aria, {"is_normed": False}),
    ("exaone_moe", exaone4, {"has_correction": False}),
    ("granitemoeshared", granite_moe, {"shared_size": 0}),
    ("mimo_v2_flash", mimo_v2, {"has_correction": False}),
    ("hy_v3", hunyuan3, {"has_correction": False}),
    ("glm4_moe", glm4_moe, {"has_correction": False}),
    ("glm4_moe", glm4_moe, {"num_group_scores": 1}),
    ("glm4_moe", glm4_moe, {"shared_size": 0}),
    ("gpt_oss", gpt_oss, {"has_bias": False}),
    ("gpt_oss", gpt_oss, {"has_router_bias": False}),
    ("gpt_oss", gpt_oss, {"is_normed": False}),
    ("granitemoe", granite_moe, {"is_normed": False}),
    ("hunyuan_moe", hunyuan_moe, {"is_normed": False}),
    ("hunyuan_moe", hunyuan_moe, {"shared_size": 0}),
    ("minimax_m2", mixtral, {"has_correction": False}),
    ("minimax_m2", mixtral, {"is_normed": False}),
    ("mixtral", mixtral, {"is_normed": False}),
    ("qwen2_moe", qwen_moe, {"has_shared_gate": False}),
    ("qwen2_moe", qwen_moe, {"has_shared_gate": False, "shared_size": 0}),
    ("deepseek_v2", deepseek, {"shared_size": 0}),
    ("deepseek_v3", deepseek, {"shared_size": 0}),
    ("mistral4", deepseek, {"shared_size": 0}),
    ("mistral4", deepseek, {"num_group_scores": 1}),
    ("deepseek_v3", deepseek, {"has_correction": False}),
    ("deepseek_v3", deepseek, {"num_group_scores": 1}),
    ("glm4_moe_lite", deepseek, {"has_correction": False}),
    ("granite hybrid moe", granite_hybrid, {"is_normed": False}),
    ("granite hybrid moe", granite_hybrid, {"shared_size": 0}),
    ("kimi_linear", deepseek, {"has_correction": False}),
    ("kimi_linear", deepseek, {"shared_size": 0}),
    ("lfm2 moe", lfm2, {"has_correction": False}),
    ("nemotron_h moe", nemotron_h, {"has_correction": False}),
    ("nemotron_h moe", nemotron_h, {"num_group_scores": 1}),
    ("nemotron_h moe", nemotron_h, {"shared_size": 0}),
    ("llama4", llama4, {"scales_inputs": False}),
    ("llama4", llama4, {"shared_size": 0}),
    ("qwen3_5 moe", qwen3_5, {"has_shared_gate": False}),
    ("qwen3_5 moe", qwen3_5, {"is_normed": False}),
    ("qwen3_next", qwen3_5, {"has_shared_gate": False}),
    ("qwen3_next", qwen3_5, {"has_shared_gate": False, "shared_size": 0}),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "module", "part"), EXPERT_PARTS, ids=str)
def test_a_part_of_experts_that_is_left_out_moves_the_logits(
    tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    module: ModuleType,
    part: dict[str, Any],
) -> None:
    path, with_it = tiny(family)
    monkeypatch.setattr(module, "with_experts", without_part(part))
    assert (with_it - logits(path)).norm() / with_it.norm() > 1e-3


def without_part(part: dict[str, Any]) -> Callable[..., DecoderConfig]:
    """`with_experts`, of experts that are so instead."""

    def make(
        config: ConfigFile,
        model: DecoderConfig,
        experts: ExpertsConfig,
        layers: list[bool],
        **where: bool,
    ) -> DecoderConfig:
        made = with_experts(config, model, replace(experts, **part), layers, **where)
        return replace(made, unread_prefixes=("model.layers.", "backbone.layers."))

    return make


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("axk1", {"expert_norm_places": None}),
        ("gemma3n", {"embedding_scale": 1.0}),
        ("gemma3n", {"head_norm": HeadNormConfig()}),
        ("gemma3n", {"head_norm": None}),
        ("gemma3n", {"norm_places": LLAMA_PLACES}),
        ("gemma4", {"head_norm": HeadNormConfig()}),
        ("gemma4", {"head_norm": None}),
        ("gemma4", {"layer_inputs": None}),
        ("gemma4", {"layer_inputs": None, "has_layer_scales": False}),
        ("gemma4", {"embedding_scale": 1.0}),
        ("gemma4", {"norm_places": LLAMA_PLACES}),
        ("gemma4 keys as values", {"head_norm": HeadNormConfig()}),
        ("gemma4 keys as values", {"has_layer_scales": False}),
        ("gemma4 experts", {"experts": (), "norm_places": BOTH_SIDES}),
        ("apertus", {"mlp": MlpConfig(is_gated=False, up=("up_proj",))}),
        ("afmoe", {"has_attention_gate": False, "stored_qkv": QKV_PARTS}),
        ("afmoe", {"norm_places": LLAMA_PLACES}),
        ("apertus", {"head_norm": None}),
        ("biogpt", {"position_offset": None}),
        ("gpt2", {"position_offset": None}),
        ("granite swa", {"has_sinks": False}),
        ("hyperclovax", {"norm_places": LLAMA_PLACES}),
        ("falcon 40b", {"is_qkv_by_head": False}),
        (
            "falcon 40b",
            {"norm_places": NormPlaces(before_attention="ln_attn", before_mlp=None)},
        ),
        ("gpt_neox", {"is_qkv_by_head": False}),
        ("gptj", {"has_head_bias": False}),
        ("nanochat", {"head_norm": None}),
        ("nanochat", {"norms_embeddings": False}),
        ("nanochat", {"layer_ropes": (RopeConfig("default", 1e4),) * 2}),
        ("persimmon", {"head_norm": None}),
        ("phi", {"has_head_bias": False}),
        ("phi norms", {"head_norm": replace(PHI_HEAD_NORM, has_bias=False)}),
        ("phi norms", {"head_norm": None}),
        (
            "zamba2",
            {
                "shared_blocks": SharedBlocksConfig(
                    num_blocks=2,
                    layer_ids=(1, 2, 3),
                    adapter_rank=5,
                    adapts_attention=False,
                    mlp=MlpConfig(activation="gelu", up=("gate_up_proj",)),
                    has_mlp_bias=True,
                )
            },
        ),
    ],
    ids=str,
)
def test_a_part_of_a_layer_that_is_left_out_moves_the_logits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, family: str, part: dict[str, Any]
) -> None:
    path, with_it = tiny(family)
    model = read_model_config(path)
    read = FUSED_ARCHITECTURES[model.architecture]

    def without_part(*args: Any) -> DecoderConfig:
        return replace(read(*args), **part, unread_prefixes=("",))

    monkeypatch.setitem(FUSED_ARCHITECTURES, model.architecture, without_part)
    assert (with_it - logits(path)).norm() / with_it.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["router.scale", "router.per_expert_scale"])
def test_a_scale_of_a_router_that_is_one_moves_the_logits(
    tmp_path: Path, tiny: Tiny, name: str
) -> None:
    path, with_it = tiny("gemma4 experts")
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    weights = load_file(copy / "model.safetensors")
    for each in [each for each in weights if each.endswith(name)]:
        weights[each] = torch.ones_like(weights[each])
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    assert (with_it - logits(copy)).norm() / with_it.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("altup", each) for each in ("router_norm", "modality_router", "correct_output_scale")),
        *(("altup", each) for each in ("correction_coefs", "prediction_coefs")),
        ("laurel", "post_laurel_norm"),
        ("model", "altup_projections.1"),
        ("model", "altup_unembed_projections.1"),
    ],
)
def test_a_part_of_streams_that_is_zero_moves_the_logits(
    tmp_path: Path, tiny: Tiny, module: str, name: str
) -> None:
    path, with_it = tiny("gemma3n")
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    weights = load_file(copy / "model.safetensors")
    names = [each for each in weights if f"{module}.{name}" in each]
    assert names
    for each in names:
        weights[each] = torch.zeros_like(weights[each])
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    assert (with_it - logits(copy)).norm() / with_it.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gpt_oss", "mimo_v2_flash"])
def test_sinks_that_are_left_out_move_the_logits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    path, with_them = tiny(family)
    read = DecoderWeights.sinks

    def nothing(weights: DecoderWeights, layer_id: int) -> torch.Tensor:
        return torch.full_like(read(weights, layer_id), -torch.inf)

    monkeypatch.setattr(DecoderWeights, "sinks", nothing)
    assert (with_them - logits(path)).norm() / with_them.norm() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family",
    ["afmoe", "dots1", "exaone_moe", "glm4_moe", "hunyuan_moe", "hy_v3", "minimax_m2", "olmoe"],
)
def test_norms_of_queries_and_keys_that_are_left_out_move_the_logits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    path, with_them = tiny(family)
    monkeypatch.setattr(decoder, "make_head_norm", lambda *_, **__: None)
    assert (with_them - logits(path)).norm() / with_them.norm() > 1e-3


@pytest.mark.parametrize("value", [0, -1.0, "1", float("inf")])
def test_a_scale_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    path = save_tiny_model(tmp_path, "granite")
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | {"residual_multiplier": value}))
    with pytest.raises(ConfigError, match="residual_multiplier"):
        Rig(path)


def logits(path: Path) -> torch.Tensor:
    """Behind the prompt."""
    rig = Rig(path)
    rig.run(make_add(1, PROMPT, max_tokens=1, ignore_eos=True))
    return rig.logits[1, len(PROMPT)]
