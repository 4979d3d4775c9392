"""What families of models ask a GGUF file, by keys that begin with its architecture.

How it stretches positions is told in the words of config.json's rope_parameters.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

from shared.errors import ConfigError
from shared.gguf.gguf_model import GgufModel

Rope = dict[str, Any]

# A file holds what Llama 3 makes of these numbers, and of them the first factor alone.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_TOLERANCE = 1e-4  # of factors that were computed in float32


class ModelFacts:
    """What the file of one model says.

    Methods raise ConfigError for what is missing, or not as it must be.
    """

    def __init__(self, model: GgufModel) -> None:
        self._model = model
        self._metadata = model.metadata
        self._prefix = model.metadata.architecture

    def integer(self, name: str, default: int | None = None) -> int:
        return self._metadata.integer(f"{self._prefix}.{name}", default)

    def number(self, name: str, default: float | None = None) -> float:
        return self._metadata.number(f"{self._prefix}.{name}", default)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if f"{self._prefix}.{name}" in self._metadata else None

    def text(self, name: str, default: str) -> str:
        return self._metadata.text(f"{self._prefix}.{name}", default)

    def has_tensor(self, name: str) -> bool:
        return name in self._model.tensors

    def floats(self, name: str) -> list[float] | None:
        """A small tensor's values; None where there is none."""
        tensor = self._model.tensors.get(name)
        if tensor is None:
            return None
        if tensor.type.name != "F32":
            raise ConfigError(f"{tensor.path}: {name} is {tensor.type.name}, not F32")
        with tensor.path.open("rb") as stream:
            stream.seek(tensor.start)
            return array("f", stream.read(tensor.num_bytes)).tolist()

    @property
    def vocab_size(self) -> int:
        embeddings = self._model.tensors.get("token_embd.weight")
        if embeddings is None:
            raise self.error("has no tensor 'token_embd.weight'")
        return embeddings.shape[0]

    @property
    def num_heads(self) -> int:
        return self._positive("attention.head_count")

    @property
    def num_kv_heads(self) -> int:
        return self._positive("attention.head_count_kv", self.num_heads)

    @property
    def head_dim(self) -> int:
        default = self.integer("embedding_length") // self.num_heads
        head_dim = self._positive("attention.key_length", default)
        if (value_len := self.integer("attention.value_length", head_dim)) != head_dim:
            raise self.error(f"has keys of {head_dim} and values of {value_len}: not supported")
        return head_dim

    @property
    def num_rotated(self) -> int:
        """The number of each head's dimensions that positions turn."""
        return self._positive("rope.dimension_count", self.head_dim)

    @property
    def stored_dtype(self) -> str:
        """The type as config.json calls it: float32 only where all of it is."""
        types = {tensor.type.name for tensor in self._model.tensors.values()}
        return "float32" if types == {"F32"} else "bfloat16"

    @property
    def num_layers(self) -> int:
        num_layers = self._positive("block_count")
        last = f"blk.{num_layers - 1}."
        if not any(name.startswith(last) for name in self._model.tensors):
            raise self.error(f"is to have {num_layers} layers, and has no tensor of the last")
        return num_layers

    @property
    def max_context_len(self) -> int:
        return self._positive("context_length")

    def layer_types(self, period: int) -> list[str]:
        """The last of each `period` layers sees all, the others a sliding window."""
        return [
            "sliding_attention" if idx % period < period - 1 else "full_attention"
            for idx in range(self.num_layers)
        ]

    def refuse_experts(self) -> None:
        num_experts = self.integer("expert_count", 0)
        if num_experts:
            raise self.error(
                f"is a {self._prefix} with {num_experts} experts: not served from GGUF"
            )

    def refuse_partial_rope(self) -> None:
        if self.num_rotated != self.head_dim:
            raise self.error(
                f"rotates {self.num_rotated} of {self.head_dim} dimensions: not supported"
            )

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._metadata.path} {problem}")

    def _positive(self, name: str, default: int | None = None) -> int:
        value = self.integer(name, default)
        if value < 1:
            raise self.error(f"has {self._prefix}.{name} {value}")
        return value


def scaled_rope(facts: ModelFacts, default_theta: float = 10000.0) -> Rope:
    """Default, linear or yarn; linear where old files tell a factor alone. Raises ConfigError for
    others.
    """
    theta = facts.number("rope.freq_base", default_theta)
    old = facts.number("rope.scale_linear", 0.0)
    factor = facts.number("rope.scaling.factor", old)
    match facts.text("rope.scaling.type", "linear" if factor else "none"):
        case "linear" if factor:
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        case "none" | "linear":
            return {"rope_type": "default", "rope_theta": theta}
        case "yarn":
            return {"rope_type": "yarn", "rope_theta": theta} | _yarn(facts)
        case other:
            raise facts.error(f"scales positions by {other!r}: not supported")


def llama_rope(facts: ModelFacts) -> Rope:
    """Knows Llama 3's way, too, of which a file holds a factor for each frequency."""
    rope = scaled_rope(facts)
    factors = facts.floats("rope_freqs.weight")
    if factors is None:
        return rope
    theta = float(rope["rope_theta"])
    wanted = _llama3_factors(theta, len(factors), max(factors))
    is_llama3 = len(factors) == facts.head_dim // 2 and all(
        math.isclose(ours, theirs, rel_tol=_TOLERANCE)
        for ours, theirs in zip(wanted, factors, strict=True)
    )
    if rope["rope_type"] != "default" or not is_llama3:
        raise facts.error("has rope_freqs that are not Llama 3's: not supported")
    factor = round(max(factors), 3)
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor} | _LLAMA3


def phi3_rope(facts: ModelFacts) -> Rope:
    """Part of each head is rotated; long texts have factors of their own."""
    if (kind := facts.text("rope.scaling.type", "none")) not in ("none", "longrope"):
        raise facts.error(f"scales positions by {kind!r}: not supported")
    rope: Rope = {
        "rope_type": "default",
        "rope_theta": facts.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": facts.num_rotated / facts.head_dim,
    }
    long, short = (facts.floats(f"rope_factors_{each}.weight") for each in ("long", "short"))
    if long is None and short is None:
        return rope
    if long is None or short is None:
        raise facts.error("has rope_factors for long or for short texts alone: not supported")
    return rope | {"rope_type": "longrope", "long_factor": long, "short_factor": short}


def _yarn(facts: ModelFacts) -> Rope:
    for name in ("attn_factor", "yarn_attn_factor"):
        if facts.number(f"rope.scaling.{name}", 1.0) != 1.0:
            raise facts.error(f"has rope.scaling.{name}: not supported")
    found: Rope = {
        "factor": facts.number("rope.scaling.factor"),
        "original_max_position_embeddings": facts.integer("rope.scaling.original_context_length"),
    }
    for name in ("beta_fast", "beta_slow"):
        value = facts.optional_number(f"rope.scaling.yarn_{name}")
        if value is not None:
            found[name] = value
    return found


def _llama3_factors(theta: float, num_frequencies: int, factor: float) -> list[float]:
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    trained_len = _LLAMA3["original_max_position_embeddings"]
    found = []
    for idx in range(num_frequencies):
        num_turns = trained_len / (2 * math.pi * theta ** (idx / num_frequencies))
        share = min(1.0, max(0.0, (num_turns - low) / (high - low)))
        found.append(1 / ((1 - share) / factor + share))
    return found
