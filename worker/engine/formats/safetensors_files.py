"""The safetensors files of a folder."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from shared.checkpoint.weights.checkpoint_tensors import CheckpointTensors
from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError
from worker.engine.formats.tensor_files import rows_in_halves


class SafetensorsFiles:
    """`TensorFiles`, read from memory-mapped files. A context: closes the files.

    What was read is a copy, and its part of the map is given back: a loader that packs weights one
    after the other has none of them twice in memory but the one that it packs.
    """

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self._files: dict[str, Any] = {}  # open files, by file name
        self._tensors = CheckpointTensors(model_path, {}, {}, {})

    def __enter__(self) -> Self:
        """Raises ConfigError."""
        self._tensors = CheckpointTensors.read(self._model_path)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    @property
    def place(self) -> str:
        return self._tensors.place

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._tensors.headers

    @property
    def is_renamed(self) -> bool:
        return bool(self._tensors.stored_names)

    def read_bytes(self, name: str) -> bytes:
        return self._tensors.read_bytes(name)

    def get(self, name: str) -> torch.Tensor:
        file_name = self._tensors.file_of_tensor[name]
        try:
            stored_name = self._tensors.stored_name(name)
            mapped: torch.Tensor = self._open(file_name).get_tensor(stored_name)
        except SafetensorError as exc:
            raise ConfigError(f"cannot read {name!r} from {file_name}: {exc}") from exc
        tensor = mapped.clone()
        _give_back(mapped)
        num_heads = self._tensors.paired_heads.get(name)
        return tensor if num_heads is None else rows_in_halves(tensor, num_heads)

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self._model_path / file_name
            try:
                self._files[file_name] = safe_open(path, framework="pt")
            except SafetensorError as exc:
                raise ConfigError(
                    f"cannot read {path}, which is cut or no safetensors file: {exc}; "
                    "download it again"
                ) from exc
            except OSError as exc:
                raise ConfigError(f"cannot read {path}: {exc}") from exc
        return self._files[file_name]


def _give_back(mapped: torch.Tensor) -> None:
    """The whole pages of a tensor that nobody has but the caller, and nobody has written to."""
    start = -(-mapped.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    num_bytes = mapped.data_ptr() + mapped.nbytes - start
    if num_bytes > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED
        )
