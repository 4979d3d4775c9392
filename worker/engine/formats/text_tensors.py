"""The tensors of the text model in the files of a checkpoint that reads images."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shared.checkpoint.vision_text import text_tensor_name
from shared.errors import ConfigError
from worker.engine.formats.tensor_files import TensorFiles, TensorHeader


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
