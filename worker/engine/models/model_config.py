"""What a checkpoint's config.json says about a decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding, and how it is stretched."""

    kind: Literal["default", "linear", "llama3"]
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0  # of llama3, as the next two
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama shape."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_context_len: int
    rope: RopeConfig
    has_qkv_bias: bool
    has_output_bias: bool  # of the attention's output projection
    has_mlp_bias: bool
    has_tied_embeddings: bool
    stored_dtype: str  # of the checkpoint: "float32", "bfloat16", "float16"
    eos_token_ids: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Without norms and biases; tied embeddings count once."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        num_embeddings = 1 if self.has_tied_embeddings else 2
        return self.num_layers * (attention + mlp) + (
            num_embeddings * self.vocab_size * self.hidden_size
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


class ConfigFile:
    """A JSON object of a checkpoint; what is missing or of the wrong type is told by its name."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Raises ConfigError."""
        try:
            values = json.loads(path.read_text())
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise ConfigError(f"{path} is not JSON: {exc}") from exc
        if not isinstance(values, dict):
            raise ConfigError(f"{path} is not a JSON object")
        return cls(path, values)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.path}: '{name}' must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{self.path}: '{name}' must be a number, not {value!r}")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: '{name}' must be true or false, not {value!r}")
        return value

    def section(self, name: str) -> ConfigFile | None:
        """A nested object."""
        value = self.get(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.path}: '{name}' must be an object, not {value!r}")
        return ConfigFile(self.path, value)

    def get(self, name: str, default: Any) -> Any:
        """A null counts as missing."""
        value = self._values.get(name)
        return default if value is None else value

    def refuse(self, name: str, *allowed: Any) -> None:
        """Raises ConfigError when a feature that we lack is asked for."""
        value = self.get(name, None)
        if value is not None and value not in allowed:
            raise ConfigError(f"{self.path}: {name}={value!r} is not supported")


def token_ids_of(config: ConfigFile, name: str) -> tuple[int, ...] | None:
    """One id or a list of them; None when the file does not say."""
    value = config.get(name, None)
    if value is None:
        return None
    token_ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in token_ids):
        raise ConfigError(f"{config.path}: '{name}' must be token ids, not {value!r}")
    return tuple(token_ids)
