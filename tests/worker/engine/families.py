"""Tiny configurations of model families: what docs/models.md lists, a test here proves."""

from __future__ import annotations

from typing import Any

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
}
