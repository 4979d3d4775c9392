"""The shape of the decoders that tests make: wide enough not to fall into a loop at once."""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 300
CONTEXT_LEN = 512


def tiny_decoder_config() -> dict[str, Any]:
    """What config.json says of it, whatever its family."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT_LEN,
        "initializer_range": 0.3,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
