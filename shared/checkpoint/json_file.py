"""Reads the JSON files of a checkpoint."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import ConfigError

_MAX_BYTES = 100 << 20  # the largest indexes of weights have 10 MB

T = TypeVar("T", dict[str, Any], list[Any])


def regular_bytes(path: Path) -> int:
    """The length of a file. Raises OSError, and ConfigError for what is none: a read of a pipe or a
    device may never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is no regular file")
    return status.st_size


def read_json(path: Path, kind: type[T], default: T | None = None) -> T:
    """An object or a list. Raises ConfigError; a file that is missing may have a default."""
    try:
        if (num_bytes := regular_bytes(path)) > _MAX_BYTES:
            raise ConfigError(f"{path} has {num_bytes} bytes: more than {_MAX_BYTES} are not read")
        value = json.loads(path.read_text())
    except FileNotFoundError:
        if default is not None:
            return default
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    if not isinstance(value, kind):
        name = "object" if kind is dict else "list"
        raise ConfigError(f"{path} does not hold a JSON {name}")
    return value
