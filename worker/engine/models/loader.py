"""Reads the tensors of a checkpoint from its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import ConfigError

OnProgress = Callable[[float], None]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightReader(Protocol):
    """Where a model's tensors come from."""

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """In the model's dtype. Raises ConfigError when there is none of this shape."""
        ...


class CheckpointReader:
    """The tensors of a folder, by name, over memory-mapped files. A context: closes the files.

    `on_progress` hears, from 0 to 1, which share of the bytes has been read.
    """

    def __init__(self, model_path: Path, dtype: torch.dtype, on_progress: OnProgress) -> None:
        self._model_path = model_path
        self._dtype = dtype
        self._on_progress = on_progress
        self._files: dict[str, Any] = {}  # open files, by file name
        self._file_of_tensor: dict[str, str] = {}
        self._num_bytes = 0  # of the files
        self._num_read_bytes = 0

    def __enter__(self) -> Self:
        index_path = self._model_path / INDEX_FILE
        if index_path.exists():
            self._file_of_tensor = _read_index(index_path)
        else:
            names = self._open(SINGLE_FILE).keys()
            self._file_of_tensor = dict.fromkeys(names, SINGLE_FILE)
        files = {self._model_path / name for name in self._file_of_tensor.values()}
        self._num_bytes = sum(file.stat().st_size for file in files if file.exists())
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        self._files.clear()
        if exc_type is None:
            self._on_progress(1.0)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of_tensor

    def names_ending(self, *endings: str) -> list[str]:
        return [name for name in self._file_of_tensor if name.endswith(endings)]

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """In our dtype. Raises ConfigError when it is missing or of another shape."""
        stored_name = name
        if name not in self._file_of_tensor:  # saved without a head: its names have no prefix
            stored_name = name.removeprefix("model.")
        file_name = self._file_of_tensor.get(stored_name)
        if file_name is None:
            raise ConfigError(f"the checkpoint in {self._model_path} has no tensor {name!r}")
        try:
            tensor: torch.Tensor = self._open(file_name).get_tensor(stored_name)
        except SafetensorError as exc:
            raise ConfigError(f"cannot read {name!r} from {file_name}: {exc}") from exc
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{name!r} has shape {tuple(tensor.shape)}, config.json says {shape}")
        self._num_read_bytes += tensor.nbytes
        self._on_progress(min(1.0, self._num_read_bytes / max(1, self._num_bytes)))
        return tensor.to(self._dtype)

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self._model_path / file_name
            if not path.exists():
                raise ConfigError(f"the checkpoint in {self._model_path} has no {file_name}")
            try:
                self._files[file_name] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as exc:
                raise ConfigError(f"cannot read {path}: {exc}") from exc
        return self._files[file_name]


def _read_index(index_path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index_path.read_text())["weight_map"]
        return {str(name): str(file_name) for name, file_name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"cannot read {index_path}: {exc!r}") from exc
