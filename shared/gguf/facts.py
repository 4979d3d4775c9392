"""What families of models ask a GGUF file, by keys that begin with its architecture."""

from __future__ import annotations

from array import array

from shared.errors import ConfigError
from shared.gguf.gguf_model import GgufModel


class ModelFacts:
    """Of one model. Methods raise ConfigError for what is missing, or not as it must be."""

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
        """Of each head's dimensions, those that positions turn."""
        return self._positive("rope.dimension_count", self.head_dim)

    @property
    def stored_dtype(self) -> str:
        """As config.json calls it: float32 only where all of it is."""
        types = {tensor.type.name for tensor in self._model.tensors.values()}
        return "float32" if types == {"F32"} else "bfloat16"

    def layer_types(self, period: int) -> list[str]:
        """The last of each `period` layers sees all, the others a sliding window."""
        return [
            "sliding_attention" if idx % period < period - 1 else "full_attention"
            for idx in range(self.integer("block_count"))
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
