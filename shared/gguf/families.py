"""The architectures of GGUF files that are served, as Hugging Face's config.json describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.errors import ConfigError
from shared.gguf.facts import ModelFacts, llama_rope, phi3_rope, scaled_rope
from shared.gguf.gguf_model import GgufModel

Config = dict[str, Any]

# Of the largest Gemmas alone the scale of attention is not that of a head.
_LARGEST_GEMMA2_LAYERS, _LARGEST_GEMMA3_LAYERS = 46, 62
_GEMMA3_PERIOD, _OTHER_PERIOD = 6, 2  # of sliding windows: the last layer of each has none
_GEMMA3_LOCAL_THETA = 10000.0


def hugging_face_config(model: GgufModel) -> Config:
    """What config.json would say. Raises ConfigError for an architecture that is not served."""
    architecture = model.metadata.architecture
    read = _FAMILIES.get(architecture)
    if read is None:
        raise ConfigError(
            f"{model.paths[0]}: general.architecture {architecture!r} is not served from GGUF; "
            f"served are {', '.join(_FAMILIES)}"
        )
    return read(ModelFacts(model))


def _llama(facts: ModelFacts) -> Config:
    facts.refuse_experts()
    facts.refuse_partial_rope()
    has_bias = facts.has_tensor("blk.0.attn_q.bias")
    return (
        _decoder(facts, "LlamaForCausalLM", "llama")
        | {"rope_parameters": llama_rope(facts), "attention_bias": has_bias}
        | {"mlp_bias": facts.has_tensor("blk.0.ffn_gate.bias")}
    )


def _qwen2(facts: ModelFacts) -> Config:
    facts.refuse_experts()
    return _decoder(facts, "Qwen2ForCausalLM", "qwen2") | {"use_sliding_window": False}


def _qwen3(facts: ModelFacts) -> Config:
    facts.refuse_experts()
    return _decoder(facts, "Qwen3ForCausalLM", "qwen3") | _qwen3_attention(facts)


def _qwen3moe(facts: ModelFacts) -> Config:
    return (
        _decoder(facts, "Qwen3MoeForCausalLM", "qwen3_moe")
        | _qwen3_attention(facts)
        | {
            "num_experts": facts.integer("expert_count"),
            "num_experts_per_tok": facts.integer("expert_used_count"),
            "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )


def _qwen3_attention(facts: ModelFacts) -> Config:
    has_bias = facts.has_tensor("blk.0.attn_q.bias")
    return {"attention_bias": has_bias, "use_sliding_window": False}


def _gemma2(facts: ModelFacts) -> Config:
    return _decoder(facts, "Gemma2ForCausalLM", "gemma2") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": facts.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.number("final_logit_softcapping", 30.0),
        "sliding_window": facts.integer("attention.sliding_window", 4096),
        "layer_types": facts.layer_types(_OTHER_PERIOD),
        "query_pre_attn_scalar": _gemma_scale(facts, _LARGEST_GEMMA2_LAYERS),
    }


def _gemma3(facts: ModelFacts) -> Config:
    local_theta = facts.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
    local_rope = {"rope_type": "default", "rope_theta": local_theta}
    window = facts.integer("attention.sliding_window", 0)
    return _decoder(facts, "Gemma3ForCausalLM", "gemma3_text") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": facts.optional_number("final_logit_softcapping"),
        "sliding_window": window or facts.integer("context_length"),
        "layer_types": facts.layer_types(_GEMMA3_PERIOD if window else 1),
        "query_pre_attn_scalar": _gemma_scale(facts, _LARGEST_GEMMA3_LAYERS),
        "rope_parameters": {
            "full_attention": scaled_rope(facts, default_theta=1e6),
            "sliding_attention": local_rope,
        },
    }


def _gemma_scale(facts: ModelFacts, largest_num_layers: int) -> int:
    if facts.num_layers == largest_num_layers:
        return facts.integer("embedding_length") // facts.num_heads
    return facts.head_dim


def _phi3(facts: ModelFacts) -> Config:
    facts.refuse_experts()
    context_len = facts.integer("context_length")
    return _decoder(facts, "Phi3ForCausalLM", "phi3") | {
        "rope_parameters": phi3_rope(facts),
        "original_max_position_embeddings": facts.integer(
            "rope.scaling.original_context_length", context_len
        ),
        # Zero: Phi-4 has none.
        "sliding_window": facts.integer("attention.sliding_window", 0) or None,
    }


def _gpt_oss(facts: ModelFacts) -> Config:
    rope = scaled_rope(facts, default_theta=150000.0)
    if rope["rope_type"] == "yarn":  # its makers do not round the bounds of the stretched range
        rope = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False} | rope
    return _decoder(facts, "GptOssForCausalLM", "gpt_oss") | {
        "rope_parameters": rope,
        "intermediate_size": facts.integer("expert_feed_forward_length"),
        "num_local_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
        "sliding_window": facts.integer("attention.sliding_window"),
        "layer_types": facts.layer_types(_OTHER_PERIOD),
        "attention_bias": True,
    }


def _granite(facts: ModelFacts) -> Config:
    facts.refuse_experts()
    facts.refuse_partial_rope()
    return _decoder(facts, "GraniteForCausalLM", "granite") | {
        "attention_multiplier": facts.number("attention.scale", 0.0) or facts.head_dim**-0.5,
        "embedding_multiplier": facts.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": facts.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": facts.number("logit_scale"),
        "attention_bias": facts.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": facts.has_tensor("blk.0.ffn_gate.bias"),
    }


def _decoder(facts: ModelFacts, architecture: str, model_type: str) -> Config:
    """What all families have."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": facts.vocab_size,
        "hidden_size": facts.integer("embedding_length"),
        "intermediate_size": facts.integer("feed_forward_length", 0),
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": facts.max_context_len,
        "rope_parameters": scaled_rope(facts),
        "tie_word_embeddings": not facts.has_tensor("output.weight"),
        "dtype": facts.stored_dtype,
    }


_FAMILIES: dict[str, Callable[[ModelFacts], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
    "granite": _granite,
}
