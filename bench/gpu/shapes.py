"""Real shapes of models; their weights are random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
}

_LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "mlp_bias": False,
}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": _QWEN3
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama-3.1-8b": _LLAMA3
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "llama-3.2-1b": _LLAMA3
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "tiny": _QWEN3  # for a try on a CPU
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
}


def write_config(folder: Path, name: str) -> Path:
    """A folder that --load-format dummy takes."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(SHAPES[name]))
    return path


class Costs:
    """What a step of a model must read and compute, at least."""

    def __init__(self, name: str, kv_value_bytes: int = 2) -> None:
        shape: dict[str, int] = SHAPES[name]
        hidden, head_dim = shape["hidden_size"], shape["head_dim"]
        num_layers, num_heads = shape["num_hidden_layers"], shape["num_attention_heads"]
        num_kv_heads = shape["num_key_value_heads"]
        attention = 2 * hidden * head_dim * (num_heads + num_kv_heads)
        layer = attention + 3 * hidden * shape["intermediate_size"]
        self.num_layer_weights = num_layers * layer
        self.num_head_weights = shape["vocab_size"] * hidden
        self.weight_bytes = 2 * (self.num_layer_weights + self.num_head_weights)  # bfloat16
        self.kv_bytes_per_token = kv_value_bytes * 2 * num_layers * num_kv_heads * head_dim
        self._attention_flops = 4 * num_layers * num_heads * head_dim  # of a query and a key

    def decode_bytes(self, num_rows: int, context_len: int) -> int:
        """All weights once, and the keys and values of all rows."""
        return self.weight_bytes + num_rows * context_len * self.kv_bytes_per_token

    def step_seconds(self, num_tokens: int, bytes_per_s: float, flops_per_s: float) -> float:
        """What a step takes at least, but for its attention."""
        flops = 2 * self.num_layer_weights * num_tokens
        return max(self.weight_bytes / bytes_per_s, flops / flops_per_s)

    def prefill_flops(self, num_tokens: int) -> int:
        """Of one prompt: its linears, one row of the head, attention over each token's past."""
        linears = 2 * self.num_layer_weights * num_tokens + 2 * self.num_head_weights
        return linears + self._attention_flops * num_tokens * (num_tokens + 1) // 2
