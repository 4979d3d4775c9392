"""Files of weights: all there, and each as long as its own head says."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.model_shape import why_no_weights
from shared.errors import ConfigError
from shared.gguf.gguf_model import GgufModel, holds_gguf

_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100 << 20


def check_weights(path: Path) -> tuple[int, int]:
    """Returns the number of files, and their bytes. Raises ConfigError."""
    if holds_gguf(path):
        parts = GgufModel.read(min(path.glob("*.gguf"))).paths
        return len(parts), sum(part.stat().st_size for part in parts)
    names = _weight_files(path)
    if not names:
        raise ConfigError(why_no_weights(path))
    return len(names), sum(_check_weight_file(path / name) for name in names)


def _weight_files(path: Path) -> list[str]:
    """The files that the index names, or those that are there. Raises ConfigError."""
    if (path / _INDEX).is_file():
        weight_map = read_json(path / _INDEX, dict).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ConfigError(f"{path / _INDEX} has no weight_map")
        return sorted({str(name) for name in weight_map.values()})
    return sorted(file.name for file in path.glob("*.safetensors"))


def _check_weight_file(file: Path) -> int:
    """Its size, if that is what its head says. Raises ConfigError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (header_len,) = struct.unpack("<Q", stream.read(8))
            if header_len > min(size, _MAX_HEADER_BYTES):
                raise ConfigError(f"{file.name} is cut, or no safetensors file")
            header: dict[str, Any] = json.loads(stream.read(header_len))
    except FileNotFoundError:
        raise ConfigError(f"{file.name} is missing") from None
    except (OSError, struct.error, ValueError) as exc:
        raise ConfigError(f"{file.name} cannot be read: {exc}") from exc
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if (wanted := 8 + header_len + end) != size:
        raise ConfigError(f"{file.name} has {size} bytes, its head says {wanted}")
    return size
