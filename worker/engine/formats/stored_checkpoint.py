"""The weights of a checkpoint by the names that models ask for, in whatever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.quantization_files import read_quantization
from shared.checkpoint.formats.stored_heads import StoredHeads, text_names
from shared.checkpoint.weights.plain_tensors import is_harmless
from shared.errors import ConfigError
from worker.engine.formats.safetensors_files import SafetensorsFiles
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.tensor_files import TensorFiles, TextTensors
from worker.engine.formats.weight_loading import load_weight
from worker.engine.formats.weight_parts import WeightParts

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """Files whose heads were checked, and their weights."""

    files: TensorFiles
    heads: StoredHeads

    @classmethod
    def of(cls, files: TensorFiles, quantization: Quantization | None) -> Self:
        """Raises ConfigError."""
        return cls(files, StoredHeads.of(files, quantization))

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A quantised weight is made dense in `dtype`. Raises ConfigError."""
        codes = self.codes(name)
        return self.files.get(name) if codes is None else codes.dense(dtype)

    def codes(self, name: str) -> ScaledWeight | None:
        """A quantised weight as it is stored; None for one that is not. Raises ConfigError."""
        weight = self.heads.quantized.get(name)
        if weight is None:
            return None
        return load_weight(weight.format, WeightParts(weight.heads, self.files))


def check_unread(files: TensorFiles, names: list[str]) -> None:
    """Raises ConfigError for tensors that somebody trained, and a model has no place for.

    A bias of zeros, as old versions of GPTQ's tools write them, adds nothing.
    """
    unread = sorted(name for name in names if not is_harmless(name))
    unread = [name for name in unread if not name.endswith(".bias") or _is_something(files, name)]
    if unread:
        rest = len(unread) - _MAX_NAMED
        told = ", ".join(map(repr, unread[:_MAX_NAMED])) + (f" and {rest} more" if rest > 0 else "")
        raise ConfigError(
            f"the checkpoint in {files.place} has tensors that the model as config.json describes "
            f"it has no place for: {told}"
        )


@contextmanager
def open_checkpoint(model_path: Path) -> Iterator[StoredCheckpoint]:
    """Raises ConfigError."""
    quantization = read_quantization(model_path)
    with SafetensorsFiles(model_path) as files:
        text = text_names(model_path, files)
        yield StoredCheckpoint.of(files if text is None else TextTensors(files, text), quantization)


def _is_something(files: TensorFiles, name: str) -> bool:
    """A tensor under a name that its reader has changed may be."""
    return name not in files.headers or bool(files.get(name).any())
