"""The weights of a checkpoint by the names that models ask for, in whatever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from shared.checkpoint.json_file import read_json
from shared.checkpoint.vision_text import has_unread_tower
from shared.checkpoint.weights.plain_tensors import (
    NO_QUANTIZATION,
    PLAIN_DTYPES,
    check_plain,
    is_harmless,
)
from shared.errors import ConfigError
from worker.engine.formats.linear_format import LinearFormat, WeightParts
from worker.engine.formats.quantization import Quantization
from worker.engine.formats.quantization_files import read_quantization
from worker.engine.formats.safetensors_files import SafetensorsFiles
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.tensor_files import TensorFiles, TextTensors

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A quantised weight: how it is stored, and where."""

    format: LinearFormat
    parts: WeightParts
    shape: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        suffixes = filter(self.parts.has, self.format.suffixes)
        return [self.parts.stem + suffix for suffix in suffixes]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """All of it was checked by its headers: each tensor means itself, or is part of a weight whose
    format its files name.
    """

    files: TensorFiles
    quantization: Quantization | None
    quantized: dict[str, StoredWeight]  # by the name of the weight

    @classmethod
    def of(cls, files: TensorFiles, quantization: Quantization | None) -> Self:
        """Raises ConfigError."""
        quantized = {} if quantization is None else _find(files, quantization)
        if quantization is not None and not quantized:
            raise ConfigError(
                f"the files of {files.place} say that it is quantised ({quantization.name}), and "
                "none of its tensors is"
            )
        checkpoint = cls(files, quantization, quantized)
        checkpoint._check_plain()
        return checkpoint

    @property
    def is_renamed(self) -> bool:
        """Whether its tensors have other names in its files."""
        return isinstance(self.files, TextTensors)

    @property
    def plain_names(self) -> list[str]:
        """The names of the tensors that mean themselves."""
        parts = {part for weight in self.quantized.values() for part in weight.names}
        return [name for name in self.files.headers if name not in parts]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None: there is no such weight."""
        if name in self.quantized:
            return self.quantized[name].shape
        header = self.files.headers.get(name)
        return None if header is None else header.shape

    def stored_names(self, name: str) -> list[str]:
        """The tensors that a weight is made of."""
        return self.quantized[name].names if name in self.quantized else [name]

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A quantised weight is made dense in `dtype`. Raises ConfigError."""
        codes = self.codes(name)
        return self.files.get(name) if codes is None else codes.dense(dtype)

    def codes(self, name: str) -> ScaledWeight | None:
        """A quantised weight as it is stored; None for one that is not. Raises ConfigError."""
        weight = self.quantized.get(name)
        return None if weight is None else weight.format.load(weight.parts)

    def num_bytes(self, name: str) -> int:
        """On disk."""
        return sum(self.files.headers[each].num_bytes for each in self.stored_names(name))

    def _check_plain(self) -> None:
        headers = {name: self.files.headers[name] for name in self.plain_names}
        told = NO_QUANTIZATION
        if self.quantization is not None:
            told = f"that is no part of a weight in {self.quantization.name}"
        check_plain(headers, self.files.place, told)


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
    is_text = has_unread_tower(read_json(model_path / "config.json", dict))
    with SafetensorsFiles(model_path) as files:
        yield StoredCheckpoint.of(TextTensors(files) if is_text else files, quantization)


def _find(files: TensorFiles, quantization: Quantization) -> dict[str, StoredWeight]:
    """The quantised weights, each checked as far as headers tell."""
    found = {
        name: stored
        for name in files.headers
        if (stored := _stored(files, quantization, name)) is not None
    }
    # The scales of one format may look like the values of another.
    parts = {part for name, stored in found.items() for part in stored.names if part != name}
    return {
        stored.parts.stem + stored.format.ending: StoredWeight(
            stored.format, stored.parts, stored.format.check(stored.parts)
        )
        for name, stored in found.items()
        if name not in parts
    }


def _stored(files: TensorFiles, quantization: Quantization, name: str) -> StoredWeight | None:
    """Not checked yet. None for a tensor that is no weight of a format."""
    dtype = files.headers[name].dtype
    if dtype in PLAIN_DTYPES:
        return None
    formats = [rule.format for rule in quantization.rules]
    for each in formats:
        if dtype in each.dtypes and name.endswith(each.marker):
            stem = name.removesuffix(each.marker)
            module = (stem + each.ending).removesuffix(".weight")
            if each in quantization.formats_of(module):
                return StoredWeight(each, WeightParts(stem, files), ())
    return None


def _is_something(files: TensorFiles, name: str) -> bool:
    """A tensor under a name that its reader has changed may be."""
    return name not in files.headers or bool(files.get(name).any())
