"""The seam to the files of a checkpoint: named tensors, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from shared.checkpoint.formats.tensor_heads import TensorHeads, TextHeads
from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError


class TensorFiles(TensorHeads, Protocol):
    """Tensors by name. Nothing of them is converted."""

    @property
    def is_renamed(self) -> bool:
        """Whether the files have other names, or other rows: only this reads them then."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """Raises ConfigError when it cannot be read."""
        ...


class TextTensors:
    """`TensorFiles` under the names of the text model on its own."""

    is_renamed = True

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


def rows_in_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The rows of a projection whose heads rotate neighbouring rows, as Hugging Face's rotate two
    halves.
    """
    if rows.shape[0] % (2 * num_heads):
        raise ConfigError(f"{rows.shape[0]} rows are not {num_heads} heads of an even size")
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
