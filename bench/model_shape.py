"""The shape of a Llama decoder: what it costs to read and to compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama decoder with tied embeddings."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def read(cls, model_path: Path) -> Self:
        """From a checkpoint's config.json."""
        config = json.loads((model_path / "config.json").read_text())
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
        )

    @property
    def num_layer_parameters(self) -> int:
        """Of the linears of all layers: each token multiplies with each once."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_head_parameters(self) -> int:
        """Of the output head: each token that is sampled multiplies with each once."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Of all linears."""
        return self.num_layer_parameters + self.num_head_parameters

    @property
    def num_kv_values(self) -> int:
        """Numbers that one token keeps in the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """Of one query row over one key: product with the key, and with the value."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


LLAMA_135M = ModelShape(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
)
