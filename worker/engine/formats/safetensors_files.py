"""The safetensors files of a folder."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import ConfigError
from worker.engine.formats.tensor_files import TensorHeader

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F4", "E2M1"), 4),
}
_OTHER_BITS = 8


class SafetensorsFiles:
    """`TensorFiles`, read from memory-mapped files. A context: closes the files.

    What was read is a copy, and its part of the map is given back: a loader that packs weights one
    after the other has none of them twice in memory but the one that it packs.
    """

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self._files: dict[str, Any] = {}  # open files, by file name
        self._file_of_tensor: dict[str, str] = {}
        self._headers: dict[str, TensorHeader] = {}

    def __enter__(self) -> Self:
        """Raises ConfigError."""
        index_path = self._model_path / INDEX_FILE
        if index_path.exists():
            self._file_of_tensor = _read_index(index_path)
        else:
            names = self._open(SINGLE_FILE).keys()
            self._file_of_tensor = dict.fromkeys(names, SINGLE_FILE)
        self._headers = {name: self._header(name) for name in self._file_of_tensor}
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    @property
    def place(self) -> str:
        return str(self._model_path)

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._headers

    def get(self, name: str) -> torch.Tensor:
        file_name = self._file_of_tensor[name]
        try:
            mapped: torch.Tensor = self._open(file_name).get_tensor(name)
        except SafetensorError as exc:
            raise ConfigError(f"cannot read {name!r} from {file_name}: {exc}") from exc
        tensor = mapped.clone()
        _give_back(mapped)
        return tensor

    def _header(self, name: str) -> TensorHeader:
        file_name = self._file_of_tensor[name]
        try:
            part = self._open(file_name).get_slice(name)
        except SafetensorError as exc:
            raise ConfigError(f"cannot read {name!r} from {file_name}: {exc}") from exc
        dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
        return TensorHeader(dtype, shape, math.prod(shape) * _BITS.get(dtype, _OTHER_BITS) // 8)

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self._model_path / file_name
            if not path.exists():
                raise ConfigError(f"the checkpoint in {self._model_path} has no {file_name}")
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


def _read_index(index_path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index_path.read_text())["weight_map"]
        return {str(name): str(file_name) for name, file_name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"cannot read {index_path}: {exc!r}") from exc
