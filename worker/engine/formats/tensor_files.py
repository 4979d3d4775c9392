"""The seam to the files of a checkpoint: named tensors, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from shared.checkpoint.vision_text import text_tensor_name
from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError


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


class TextTensors:
    """`TensorFiles` under the names of the text model on its own, without those of the tower."""

    def __init__(self, files: TensorFiles) -> None:
        """Raises ConfigError where two tensors would have one name."""
        self._files = files
        self._stored_names: dict[str, str] = {}
        self.place = files.place
        for stored_name in files.headers:
            name = text_tensor_name(stored_name)
            if name in self._stored_names:
                raise ConfigError(
                    f"the checkpoint in {files.place} has {stored_name!r} and "
                    f"{self._stored_names[name]!r}, which are one tensor of its text model"
                )
            if name is not None:
                self._stored_names[name] = stored_name

        self.headers: Mapping[str, TensorHeader] = {
            name: files.headers[stored] for name, stored in self._stored_names.items()
        }

    def get(self, name: str) -> torch.Tensor:
        return self._files.get(self._stored_names[name])
