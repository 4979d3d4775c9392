"""A LoRA adapter as PEFT stores it: read, checked, and named by its content."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from shared.checkpoint.weights.safetensors_file import TensorHeader, read_headers
from shared.errors import ConfigError, MalformedMessage

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_DTYPES = ("F32", "F16", "BF16")
# These say where an adapter comes from, what of the model it was trained for (its tensors tell
# that too), or how training went.
_FREE_KEYS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "megatron_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
    }
)
# Those of `init_lora_weights` that leave the model's own weights as they are.
_INITS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class LoraFiles:
    """The two files of an adapter. `revision` names their content everywhere."""

    config: bytes
    weights: bytes
    revision: str
    rank: int
    scale: float  # of what the two matrices make together

    @classmethod
    def read(cls, path: Path) -> LoraFiles:
        """Slow: off the event loop. Raises ConfigError, which names what is not supported."""
        if not path.is_dir():
            raise ConfigError(f"no LoRA adapter at {str(path)!r}: it is not a folder")
        try:
            config, weights = (path / CONFIG_FILE).read_bytes(), (path / WEIGHTS_FILE).read_bytes()
        except OSError as exc:
            raise ConfigError(f"no LoRA adapter at {str(path)!r}: {exc}") from exc
        try:
            return cls._checked(config, weights)
        except ConfigError as exc:
            raise ConfigError(f"the LoRA adapter at {str(path)!r}: {exc}") from exc

    @classmethod
    def from_bytes(cls, data: bytes) -> LoraFiles:
        """Raises MalformedMessage or ConfigError."""
        try:
            config, weights = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as exc:
            raise MalformedMessage(f"not a LoRA adapter: {exc}") from exc
        return cls._checked(config, weights)

    def to_bytes(self) -> bytes:
        """One object for both files."""
        return msgpack.packb((self.config, self.weights))  # type: ignore[no-any-return]

    def write(self, path: Path) -> None:
        """Writes the files as they were read."""
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG_FILE).write_bytes(self.config)
        (path / WEIGHTS_FILE).write_bytes(self.weights)

    def check_rank(self, max_rank: int) -> None:
        """Raises ConfigError."""
        if self.rank > max_rank:
            raise ConfigError(f"{CONFIG_FILE}: r={self.rank} is more than max_lora_rank={max_rank}")

    @classmethod
    def _checked(cls, config: bytes, weights: bytes) -> LoraFiles:
        values = _config_values(config)
        rank = _rank(values)
        _check_tensors(read_headers(WEIGHTS_FILE, io.BytesIO(weights), len(weights)), rank)
        digest = hashlib.sha256(len(config).to_bytes(8, "little") + config + weights)
        return cls(config, weights, digest.hexdigest()[:32], rank, _scale(values, rank))


def module_of(tensor_name: str) -> tuple[str, str]:
    """The module that a tensor of a checked adapter is put on, and its side, "A" or "B"."""
    match = _TENSOR.fullmatch(tensor_name)
    assert match is not None, "the adapter was checked"
    return match["module"], match["side"]


def _config_values(config: bytes) -> dict[str, Any]:
    try:
        values = json.loads(config)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{CONFIG_FILE} is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{CONFIG_FILE} is not a JSON object")
    _check(values, "peft_type", "LORA")
    _check(values, "task_type", "CAUSAL_LM", None)
    _check(values, "bias", "none", None)
    _check(values, "init_lora_weights", *_INITS)
    known = _FREE_KEYS | {"peft_type", "task_type", "bias", "init_lora_weights"}
    for name in sorted(values.keys() - known - {"r", "lora_alpha", "use_rslora"}):
        if values[name]:  # what we do not know changes nothing while it is off
            raise ConfigError(f"{CONFIG_FILE}: {name}={_shown(values[name])} is not supported")
    return values


def _check(values: Mapping[str, Any], name: str, *allowed: Any) -> None:
    value = values.get(name)
    if not any(value is each or (isinstance(each, str) and value == each) for each in allowed):
        raise ConfigError(f"{CONFIG_FILE}: {name}={_shown(value)} is not supported")


def _shown(value: Any) -> str:
    return json.dumps(value)[:100]


def _rank(values: Mapping[str, Any]) -> int:
    rank = values.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ConfigError(f"{CONFIG_FILE}: 'r' must be a positive integer, not {_shown(rank)}")
    return rank


def _scale(values: Mapping[str, Any], rank: int) -> float:
    alpha = values.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise ConfigError(f"{CONFIG_FILE}: 'lora_alpha' must be a number, not {_shown(alpha)}")
    return float(alpha) / (math.sqrt(rank) if values.get("use_rslora") else rank)


def _check_tensors(headers: Mapping[str, TensorHeader], rank: int) -> None:
    """Two matrices for each module, of the rank that the configuration names."""
    if not headers:
        raise ConfigError(f"{WEIGHTS_FILE} holds no tensors")
    sides: dict[str, set[str]] = {}
    for name, header in headers.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ConfigError(f"{WEIGHTS_FILE}: the tensor {name[:200]!r} is not supported")
        shape, is_a = list(header.shape), match["side"] == "A"
        if len(shape) != 2 or shape[0 if is_a else 1] != rank:
            raise ConfigError(f"{WEIGHTS_FILE}: {name!r} has shape {shape}, and r is {rank}")
        if header.dtype not in _DTYPES:
            raise ConfigError(f"{WEIGHTS_FILE}: {name!r} is {header.dtype}: not supported")
        sides.setdefault(match["module"], set()).add(match["side"])
    for module, found in sides.items():
        if len(found) < 2:
            missing = "B" if "A" in found else "A"
            raise ConfigError(f"{WEIGHTS_FILE}: {module!r} has no lora_{missing}")
