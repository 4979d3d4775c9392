"""The seam to the files of a checkpoint: named tensors, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

# As safetensors names them: what a tensor of numbers that means itself is stored in.
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is known of a tensor before it is read."""

    dtype: str  # as safetensors names it: "BF16", "F8_E4M3", "I32"
    shape: tuple[int, ...]
    num_bytes: int


class TensorFiles(Protocol):
    """Tensors by name. Nothing of them is converted."""

    @property
    def place(self) -> str:
        """Where they are, for people."""
        ...

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """The headers of all tensors, by name."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """Raises ConfigError when it cannot be read."""
        ...
