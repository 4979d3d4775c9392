"""Tiny configurations of model families: what docs/models.md lists, a test here proves."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from tests.tiny_decoder import VOCAB_SIZE

WINDOW = 24  # shorter than the tests' prompts

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MINISTRAL_3_ROPE = YARN_ROPE | {
    "original_max_position_embeddings": 20,
    "llama_4_scaling_beta": 0.4,
    "mscale": 1.0,
    "mscale_all_dim": 1.3,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.1 * idx for idx in range(8)],
    "long_factor": [1.0 + 0.9 * idx for idx in range(8)],
}
SLIDING_FIRST = {"layer_types": ["sliding_attention", "full_attention"]}
HALF_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
GRANITE_SCALES = {
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
}
QWEN_WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "max_window_layers": 1,
}

# Computed by models/decoder.py. Name -> model_type, and what is not as in `save_tiny_model`.
FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama one head a group": ("llama", {"num_key_value_heads": 6}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
    ),
    "llama dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5e4}},
    ),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama yarn": ("llama", {"rope_parameters": YARN_ROPE}),
    "llama yarn mscale": (
        "llama",
        {
            "rope_parameters": YARN_ROPE
            | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16, "truncate": False}
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": ("qwen2", QWEN_WINDOWS),
    "qwen3": ("qwen3", {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 windows": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "ministral": (
        "ministral",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "cwm": (
        "cwm",
        {"sliding_window": WINDOW, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE}
        | SLIDING_FIRST,
    ),
    "ernie4_5": ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False}),
    "glm": ("glm", {"pad_token_id": 2, "attention_bias": True}),
    "glm odd": (  # 7 of 14 values are to be rotated: an eighth goes along
        "glm",
        {"pad_token_id": 2, "head_dim": 14, "rope_parameters": HALF_ROPE},
    ),
    "helium": ("helium", {"head_dim": 16, "hidden_size": 96, "num_key_value_heads": 6}),
    "phi3": ("phi3", {"pad_token_id": 2}),
    "phi3 partial": ("phi3", {"pad_token_id": 2, "rope_parameters": PARTIAL_ROPE}),
    "phi3 window": ("phi3", {"pad_token_id": 2, "sliding_window": WINDOW}),
    "phi3 longrope": (
        "phi3",
        {
            "pad_token_id": 2,
            "head_dim": 16,
            "hidden_size": 96,
            "original_max_position_embeddings": 8,
            "rope_parameters": LONGROPE | {"attention_factor": 1.2},
            "initializer_range": 0.2,  # longer queries and keys round more
        },
    ),
    "phi3 longrope of a short text": (
        "phi3",
        {
            "pad_token_id": 2,
            "head_dim": 16,
            "hidden_size": 96,
            "original_max_position_embeddings": 512,
            "rope_parameters": LONGROPE,
        },
    ),
    "seed_oss": ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "granite": (
        "granite",
        GRANITE_SCALES | {"tie_word_embeddings": True},
    ),
}

LLAMA_4 = {
    "num_hidden_layers": 3,
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": WINDOW,
    "intermediate_size_mlp": 72,
    "floor_scale": 16,
    "attn_scale": 0.4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}

ALPHA_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 50.0}

GEMMA_4_TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
GEMMA_4 = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 0,
}

# The same; on a GPU what stands between products is computed in torch.
FUSED_IN_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 20.0,
        },
    ),
    "gemma3n": (
        "gemma3n_text",
        {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3,
            "sliding_window": WINDOW,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": VOCAB_SIZE - 40,
            "intermediate_size": [96, 96, 80, 96, 64, 96],
            "activation_sparsity_pattern": [0.95, 0.95, 0.6, 0.0, 0.0, 0.0],
            "laurel_rank": 8,
            "altup_active_idx": 1,
            "altup_num_inputs": 3,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            },
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4": (  # as E2B is made
        "gemma4_text",
        GEMMA_4
        | {
            "layer_types": GEMMA_4_TYPES,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "final_logit_softcapping": 20.0,
        },
    ),
    "gemma4 keys as values": (  # as 31B is made
        "gemma4_text",
        GEMMA_4
        | {
            "layer_types": GEMMA_4_TYPES[1:],
            "num_hidden_layers": 3,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4 experts": (  # as 26B-A4B is made
        "gemma4_text",
        GEMMA_4
        | {
            "layer_types": GEMMA_4_TYPES[2:],
            "num_hidden_layers": 2,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma4 unified": (
        "gemma4_unified_text",
        {"global_head_dim": 32, "sliding_window": WINDOW, "use_bidirectional_attention": "vision"},
    ),
    "llama4": (
        "llama4_text",
        LLAMA_4
        | {
            "moe_layers": [0, 2],
            "intermediate_size": 40,
            "rope_parameters": LLAMA3_ROPE | {"high_freq_factor": 1.0},  # no waves between
        },
    ),
    "llama4 dense": (
        "llama4_text",
        LLAMA_4 | {"moe_layers": [], "attention_bias": True, "use_qk_norm": False},
    ),
    "arcee": ("arcee", {"attention_bias": True, "mlp_bias": True}),
    "olmo": ("olmo", {"head_dim": 8, "attention_bias": True, "clip_qkv": 1.5}),
    "olmo2": ("olmo2", {}),
    "olmo2 biases": ("olmo2", {"attention_bias": True}),
    "olmo3": ("olmo3", {"sliding_window": WINDOW} | SLIDING_FIRST),
    "olmo3 yarn": (
        "olmo3",
        {"sliding_window": WINDOW}
        | SLIDING_FIRST
        | {
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            }
        },
    ),
    "exaone4": ("exaone4", {"sliding_window": WINDOW} | SLIDING_FIRST),
    "exaone4 full": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "smollm3": ("smollm3", {"pad_token_id": 2, "no_rope_layers": [1, 0]}),
    "smollm3 windows": (
        "smollm3",
        {
            "pad_token_id": 2,
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        }
        | SLIDING_FIRST,
    ),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "cohere norms": ("cohere", {"logit_scale": 0.3, "use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("cohere2", {"sliding_window": WINDOW} | SLIDING_FIRST),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
    "stablelm": ("stablelm", {"hidden_size": 96, "use_qkv_bias": True}),
    "stablelm parallel": (
        "stablelm",
        {"hidden_size": 96, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "glm4": ("glm4", {"pad_token_id": 2}),
    "nemotron": ("nemotron", {"mlp_bias": True, "attention_bias": True}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi norms": ("phi", {"head_dim": 8, "qk_layernorm": True, "num_key_value_heads": 6}),
    "gpt_neox": ("gpt_neox", {"head_dim": 8, "rotary_pct": 0.5}),
    "gpt_neox in turn": (
        "gpt_neox",
        {
            "head_dim": 8,
            "rotary_pct": 1.0,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "persimmon": ("persimmon", {"head_dim": 8, "pad_token_id": 2}),
    "persimmon without norms": (
        "persimmon",
        {"head_dim": 8, "qk_layernorm": False, "partial_rotary_factor": 1.0},
    ),
    "ministral3": (
        "ministral3",
        {"rope_parameters": MINISTRAL_3_ROPE, "hidden_act": "gelu"},
    ),
    "ministral3 window": (
        "ministral3",
        {"sliding_window": WINDOW, "rope_parameters": YARN_ROPE | {"llama_4_scaling_beta": 1.0}},
    ),
    "apertus": ("apertus", {"rope_parameters": LLAMA3_ROPE}),
    "apertus biases": (
        "apertus",
        {"attention_bias": True, "hidden_act": "relu2", "tie_word_embeddings": True},
    ),
    "nanochat": ("nanochat", {"final_logit_softcapping": 5.0}),
    "nanochat biases": (
        "nanochat",
        {"attention_bias": True, "final_logit_softcapping": None, "hidden_act": "gelu"},
    ),
    "falcon": ("falcon", {"ffn_hidden_size": 72}),
    "falcon 40b": (
        "falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "tie_word_embeddings": False,
        },
    ),
    "falcon 11b": (
        "falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "bias": True,
            "rope_theta": 500.0,
        },
    ),
    "gptj": ("gptj", {"rotary_dim": 4, "n_inner": 72}),
    "gpt2": ("gpt2", {}),
    "gpt2 by layer": (
        "gpt2",
        {
            "n_inner": 72,
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_bigcode by head": ("gpt_bigcode", {"multi_query": False}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 48}),
    "opt without biases": (
        "opt",
        {
            "ffn_dim": 64,
            "word_embed_proj_dim": 48,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        },
    ),
    "biogpt": ("biogpt", {}),
    "biogpt not scaled": ("biogpt", {"scale_embedding": False, "tie_word_embeddings": False}),
    "vaultgemma": ("vaultgemma", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    "granite swa": (
        "granite_swa",
        GRANITE_SCALES
        | {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": WINDOW,
            "layer_rope_theta": [0, 1e4, 1e2],
            "attention_multiplier": 0.02,  # scores that do not dwarf sinks
        },
    ),
    "hyperclovax": ("hyperclovax", GRANITE_SCALES | {"residual_multiplier": 1.0}),
    "hyperclovax without post norms": ("hyperclovax", GRANITE_SCALES | {"use_post_norm": False}),
    "jais2": ("jais2", {}),
    "jais2 without biases": ("jais2", {"attention_bias": False, "mlp_bias": False}),
    "hunyuan": ("hunyuan_v1_dense", {}),
    "hunyuan alpha": ("hunyuan_v1_dense", {"rope_parameters": ALPHA_ROPE}),
}

MAMBA = {
    "num_local_experts": 0,
    "shared_intermediate_size": 100,
    "mamba_n_heads": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
QWEN_3_5 = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
}
OLMO_HYBRID = {  # transformers stores convolutions in three parts of one size
    "pad_token_id": None,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 10,
}
FALCON = {
    "pad_token_id": None,
    "mamba_d_ssm": 96,
    "mlp_multipliers": [0.6, 1.7],
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 0.5,
    "ssm_out_multiplier": 1.4,
    "ssm_multipliers": [0.6, 0.4, 2.2, 1.5, 0.7],
}
NEMOTRON = {
    "mamba_num_heads": 12,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 20,
    "routed_scaling_factor": 1.7,
    "pad_token_id": None,
}
LATENT_HEADS = {
    "num_key_value_heads": 6,
    "head_dim": 8,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
KIMI = LATENT_HEADS | {
    "q_lora_rank": None,
    "linear_head_dim": 12,
    "linear_num_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "pad_token_id": None,
}
QWEN_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
# Computed by models/decoder.py, in torch alone, with a state beside keys and values.
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 3,
            "block_multiple_of": 8,
        },
    ),
    "lfm2 biases": (
        "lfm2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "conv", "full_attention"],
            "conv_L_cache": 4,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "granite hybrid": (
        "granitemoehybrid",
        MAMBA
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.125,
            "logits_scaling": 8.0,
            "time_step_limit": [0.01, 3.0],
        },
    ),
    "bamba": (
        "bamba",
        MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1], "tie_word_embeddings": True},
    ),
    "bamba biases": (
        "bamba",
        MAMBA
        | {
            "num_hidden_layers": 2,
            "attn_layer_indices": [0],
            "mamba_n_groups": 3,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "time_step_limit": [0.05, 2.0],
        },
    ),
    "qwen3_5": (
        "qwen3_5_text",
        QWEN_3_5
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "qwen3_5 biases": (
        "qwen3_5_text",
        QWEN_3_5
        | {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"],
            "linear_num_key_heads": 4,
            "linear_conv_kernel_dim": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5 moe": (
        "qwen3_5_moe_text",
        QWEN_3_5
        | QWEN_EXPERTS
        | {
            "layer_types": ["full_attention", "linear_attention"],
            "num_experts": 7,
            "num_experts_per_tok": 3,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        QWEN_3_5
        | QWEN_EXPERTS
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_next shares": (
        "qwen3_next",
        QWEN_3_5
        | QWEN_EXPERTS
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 3,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
        },
    ),
    "olmo_hybrid": (
        "olmo_hybrid",
        OLMO_HYBRID
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
            "attention_bias": True,
        },
    ),
    "lfm2 moe": (
        "lfm2_moe",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7,
        },
    ),
    "granite hybrid moe": (
        "granitemoehybrid",
        MAMBA
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 24,
            "shared_intermediate_size": 36,
            "residual_multiplier": 0.22,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        MAMBA
        | FALCON
        | {
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.4,
            "time_step_limit": [0.5, 1.5],
        },
    ),
    "falcon_h1 biases": (
        "falcon_h1",
        MAMBA
        | FALCON
        | {
            "mamba_rms_norm": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "falcon_h1 norm": (
        "falcon_h1",
        MAMBA
        | {
            "num_hidden_layers": 1,
            "mamba_d_ssm": 72,
            "pad_token_id": None,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "tie_word_embeddings": True,
        },
    ),
    "jamba": (
        "jamba",
        {
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "expert_layer_offset": 0,
            "intermediate_size": 104,
            "mamba_d_state": 10,
            "pad_token_id": None,
        },
    ),
    "jamba biases": (
        "jamba",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 0,
            "num_experts": 1,
            "mamba_d_conv": 3,
            "mamba_dt_rank": 5,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "pad_token_id": None,
            "tie_word_embeddings": True,
        },
    ),
    "kimi_linear": (
        "kimi_linear",
        KIMI
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "kimi_linear groups": (
        "kimi_linear",
        KIMI
        | {
            "layer_types": ["full_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "linear_conv_kernel_dim": 3,
            "q_lora_rank": 28,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
        },
    ),
    "zamba2": (
        "zamba2",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
            "n_mamba_heads": 6,
            "mamba_ngroups": 2,
            "mamba_d_state": 12,
            "adapter_rank": 5,
            "initializer_range": 0.1,  # streams that no norm bounds round more
            "num_key_value_heads": 6,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "add_bias_linear": True,
            "time_step_min": 0.3,
        },
    ),
    "minimax": (
        "minimax",
        {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 24,
            "block_size": 32,
            "full_attn_alpha_factor": 1.7,
            "full_attn_beta_factor": 0.6,
            "linear_attn_alpha_factor": 2.3,
            "linear_attn_beta_factor": 1.4,
            "mlp_alpha_factor": 3.5,
            "mlp_beta_factor": 0.8,
        },
    ),
    "mamba": (
        "mamba",
        {"expand": 3, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False},
    ),
    "mamba2": (
        "mamba2",
        {
            "num_heads": 6,
            "n_groups": 2,
            "state_size": 20,
            "use_bias": True,
            "time_step_limit": [0.05, 2.0],
        },
    ),
    "falcon_mamba": ("falcon_mamba", {"mixer_rms_eps": 0.01}),
    "nemotron_h": (
        "nemotron_h",
        NEMOTRON
        | {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "use_bias": True,
            "mlp_bias": True,
            "time_step_min": 0.3,
        },
    ),
    "nemotron_h moe": (
        "nemotron_h",
        NEMOTRON
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "num_experts_per_tok": 4,
        },
    ),
    "nemotron_h latent": (
        "nemotron_h",
        NEMOTRON
        | {
            "layers_block_type": ["full_attention", "moe", "linear_attention"],
            "moe_latent_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "use_conv_bias": False,
        },
    ),
    "granite hybrid biases": (
        "granitemoehybrid",
        MAMBA
        | {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"],
            "position_embedding_type": "rope",
            "mamba_n_groups": 1,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
}

SPARSE = LATENT_HEADS | {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
    "index_topk": WINDOW,
    "index_head_dim": 20,
    "index_n_heads": 16,  # some give a score: of zeros, which are equal, transformers takes any
}
DEEPSEEK_YARN = YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 1.3}
# Computed by models/decoder.py, in torch alone, over latents.
LATENT: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3 dense": (
        "deepseek_v3",
        LATENT_HEADS | {"first_k_dense_replace": 2, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek_v3 dense biases": (
        "deepseek_v3",
        LATENT_HEADS
        | {
            "first_k_dense_replace": 2,
            "attention_bias": True,
            "q_lora_rank": None,
            "rope_interleave": False,
        },
    ),
    "youtu": ("youtu", LATENT_HEADS | {"attention_bias": True}),
    "deepseek_v2": (
        "deepseek_v2",
        LATENT_HEADS
        | {
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 2.0,
            "rope_parameters": DEEPSEEK_YARN | {"mscale": 1.3},
        },
    ),
    "deepseek_v2 groups": (
        "deepseek_v2",
        LATENT_HEADS
        | {
            "first_k_dense_replace": 0,
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        LATENT_HEADS
        | {
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_group": 3,
            "topk_group": 2,
            "rope_parameters": DEEPSEEK_YARN,
        },
    ),
    "axk1": (
        "axk1",
        LATENT_HEADS
        | {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_group": 3,
            "topk_group": 2,
        },
    ),
    "mistral4": (
        "mistral4",
        LATENT_HEADS
        | {
            "num_hidden_layers": 3,
            "head_dim": 20,  # all of it
            "first_k_dense_replace": 1,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_group": 3,
            "topk_group": 2,
            "rope_parameters": MINISTRAL_3_ROPE,
        },
    ),
    "deepseek_v32": (
        "deepseek_v32",
        SPARSE | {"rope_parameters": DEEPSEEK_YARN},
    ),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        SPARSE
        | {
            "num_hidden_layers": 3,
            "indexer_types": ["full", "shared", "full"],
            "attention_bias": True,
            "pad_token_id": 2,
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        LATENT_HEADS
        | {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "pad_token_id": 2,
            "attention_bias": True,
        },
    ),
    "minicpm3 longrope": (
        "minicpm3",
        LATENT_HEADS
        | {
            "rope_parameters": {
                **LONGROPE,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 1.9, 2.8, 3.7],
                "original_max_position_embeddings": 8,
            }
        },
    ),
    "minicpm3": (
        "minicpm3",
        LATENT_HEADS | {"scale_emb": 3.0, "dim_model_base": 24, "scale_depth": 1.1},
    ),
}

MOE = {
    "intermediate_size": 104,  # transformers' own bfloat16 wants multiples of 8
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}
V3_EXPERTS = {
    "num_hidden_layers": 3,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
BEHIND_DENSE = MOE | {
    "num_hidden_layers": 3,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": 32,
}
WINDOWS_AROUND = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}
# Computed by models/decoder.py, on CPUs; on GPUs by transformers.
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": (
        "qwen3_moe",
        MOE
        | {
            "num_hidden_layers": 3,
            "moe_intermediate_size": 32,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe shares": (
        "qwen3_moe",
        MOE
        | {
            "moe_intermediate_size": 32,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "qwen2_moe": (
        "qwen2_moe",
        MOE | QWEN_WINDOWS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 40},
    ),
    "mixtral": ("mixtral", MOE | {"sliding_window": WINDOW}),
    "gpt_oss": (
        "gpt_oss",
        MOE
        | SLIDING_FIRST
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": WINDOW,
            "swiglu_alpha": 1.3,
            "swiglu_limit": 1.5,
            "rope_parameters": YARN_ROPE | {"truncate": False},
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        V3_EXPERTS
        | {
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": PARTIAL_ROPE,
            "pad_token_id": 2,
        },
    ),
    "dots1": (
        "dots1",
        V3_EXPERTS | {"sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "minimax_m2": ("minimax_m2", MOE | {"rotary_dim": 8}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "pad_token_id": None,
            "num_hidden_layers": 3,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "olmoe": ("olmoe", MOE | {"num_attention_heads": 3, "num_key_value_heads": 1}),
    "flex_olmo": (
        "flex_olmo",
        MOE | {"pad_token_id": 2, "norm_topk_prob": True, "hidden_act": "relu2"},
    ),
    "granitemoe": (
        "granitemoe",
        MOE
        | {
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.7,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
        },
    ),
    "hunyuan_moe": ("hunyuan_v1_moe", MOE | {"moe_topk": 2}),
    "granitemoeshared": (
        "granitemoeshared",
        MOE | GRANITE_SCALES | {"shared_intermediate_size": 56},
    ),
    "solar_open": (
        "solar_open",
        {name: value for name, value in V3_EXPERTS.items() if name != "first_k_dense_replace"}
        | {"num_hidden_layers": 2, "attention_bias": True, "pad_token_id": None},
    ),
    "exaone_moe": (
        "exaone_moe",
        BEHIND_DENSE | WINDOWS_AROUND | {"n_group": 4, "topk_group": 2},
    ),
    "hy_v3": (
        "hy_v3",
        BEHIND_DENSE | {"router_scaling_factor": 1.7, "attention_bias": True},
    ),
    "aria_text": (
        "aria_text",
        {
            "intermediate_size": 104,
            "moe_num_experts": 4,
            "moe_topk": 2,
            "attention_bias": True,
            "pad_token_id": None,
        },
    ),
    "cohere2_moe": (
        "cohere2_moe",
        BEHIND_DENSE
        | {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "prefix_dense_intermediate_size": 72,
            "num_shared_experts": 1,
            "logit_scale": 0.3,
        },
    ),
    "cohere2_moe sigmoid": (
        "cohere2_moe",
        MOE
        | SLIDING_FIRST
        | {
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "num_shared_experts": 2,
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-5,
            "prefix_dense_sliding_window_pattern": 2,
            "sliding_window": WINDOW,
        },
    ),
    "afmoe": (
        "afmoe",
        BEHIND_DENSE | WINDOWS_AROUND | {"route_scale": 1.7, "mup_enabled": True},
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        MOE
        | {
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "v_head_dim": 12,
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {
                "full_attention": PARTIAL_ROPE,
                "sliding_attention": PARTIAL_ROPE | {"rope_theta": 1e2},
            },
        },
    ),
}
# Computed by transformers, over our attention.
GENERAL: dict[str, tuple[str, dict[str, Any]]] = {
    "phimoe": ("phimoe", MOE),
}


def by_day(names: Iterable[str], daily: Collection[str]) -> list[Any]:
    """Parameters of a test; those that are not of every day run by night."""
    names = list(names)
    assert set(daily) <= set(names), f"no configuration: {set(daily) - set(names)}"
    return [
        name if name in daily else pytest.param(name, marks=pytest.mark.nightly) for name in names
    ]
