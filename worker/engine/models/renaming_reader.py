"""Readers of tensors whose names a checkpoint has in other words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.models.loader import CodeReader, WeightReader


def renamed(name: str, stored_names: Sequence[tuple[str, str]]) -> str:
    """What a checkpoint calls it."""
    for ours, theirs in stored_names:
        name = name.replace(ours, theirs)
    return name


class RenamingReader:
    """A `WeightReader`."""

    def __init__(self, reader: WeightReader, stored_names: Sequence[tuple[str, str]]) -> None:
        """`stored_names`: parts of a tensor's name, ours and theirs, put in in this order."""
        self._reader = reader
        self._stored_names = stored_names

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read(self._stored(name), *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read_as(dtype, self._stored(name), *shape)

    def has(self, name: str) -> bool:
        return self._reader.has(self._stored(name))

    def _stored(self, name: str) -> str:
        stored_name = renamed(name, self._stored_names)
        # Some write one part of a model in our words, like the dense layers of Kimi Linear.
        is_ours = not self._reader.has(stored_name) and self._reader.has(name)
        return name if is_ours else stored_name


class RenamingCodeReader(RenamingReader):
    """A `CodeReader`."""

    def __init__(self, reader: CodeReader, stored_names: Sequence[tuple[str, str]]) -> None:
        super().__init__(reader, stored_names)
        self._code_reader = reader

    def read_codes(self, name: str, *shape: int) -> ScaledWeight | None:
        return self._code_reader.read_codes(self._stored(name), *shape)
