"""The seam to the files of a checkpoint: named tensors, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from shared.checkpoint.formats.tensor_heads import TensorHeads, TextHeads
from shared.checkpoint.weights.safetensors_file import TensorHeader


class TensorFiles(TensorHeads, Protocol):
    """Tensors by name. Nothing of them is converted."""

    def get(self, name: str) -> torch.Tensor:
        """Raises ConfigError when it cannot be read."""
        ...


class TextTensors:
    """`TensorFiles` under the names of the text model on its own."""

    def __init__(self, files: TensorFiles, heads: TextHeads) -> None:
        self._files = files
        self._heads = heads

    @property
    def place(self) -> str:
        return self._heads.place

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._heads.headers

    def read_bytes(self, name: str) -> bytes:
        return self._heads.read_bytes(name)

    def get(self, name: str) -> torch.Tensor:
        return self._files.get(self._heads.stored_names[name])
