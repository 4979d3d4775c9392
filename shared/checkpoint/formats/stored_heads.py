"""Which weights of a checkpoint are quantised, and how, as far as heads tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.checkpoint.formats.linear_format import LinearFormat
from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.tensor_heads import TensorHeads, TextHeads, WeightHeads
from shared.checkpoint.json_file import read_json
from shared.checkpoint.vision.vision_text import has_separate_text
from shared.checkpoint.weights.plain_tensors import NO_QUANTIZATION, PLAIN_DTYPES, check_plain
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A quantised weight: how it is stored, and where."""

    format: LinearFormat
    heads: WeightHeads
    shape: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        suffixes = filter(self.heads.has, self.format.suffixes)
        return [self.heads.stem + suffix for suffix in suffixes]


@dataclass(frozen=True, slots=True)
class StoredHeads:
    """All tensors, checked: each means itself, or is part of a weight whose format the
    checkpoint's files name.
    """

    heads: TensorHeads
    quantized: dict[str, StoredWeight]  # by the name of the weight

    @classmethod
    def of(cls, heads: TensorHeads, quantization: Quantization | None) -> Self:
        """Raises ConfigError."""
        quantized = {} if quantization is None else _find(heads, quantization)
        if quantization is not None and not quantized:
            raise ConfigError(
                f"the files of {heads.place} say that it is quantised ({quantization.name}), and "
                "none of its tensors is"
            )
        stored = cls(heads, quantized)
        told = NO_QUANTIZATION
        if quantization is not None:
            told = f"that is no part of a weight in {quantization.name}"
        check_plain({name: heads.headers[name] for name in stored.plain_names}, heads.place, told)
        return stored

    @property
    def plain_names(self) -> list[str]:
        """The names of the tensors that mean themselves."""
        parts = {part for weight in self.quantized.values() for part in weight.names}
        return [name for name in self.heads.headers if name not in parts]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None: there is no such weight."""
        if name in self.quantized:
            return self.quantized[name].shape
        header = self.heads.headers.get(name)
        return None if header is None else header.shape

    def find(self, name: str, shape: tuple[int, ...]) -> str:
        """What the checkpoint calls it. Raises ConfigError where it has none of this shape."""
        stored_name = self.stored_name(name)
        if stored_name is None:
            raise ConfigError(f"the checkpoint in {self.heads.place} has no tensor {name!r}")
        found = self.shape(stored_name)
        if found != shape:
            raise ConfigError(f"{name!r} has shape {found}, config.json says {shape}")
        return stored_name

    def stored_name(self, name: str) -> str | None:
        """What the checkpoint calls it: saved without a head, names have no prefix."""
        names = (name, name.removeprefix("model."), name.removeprefix("transformer."))
        return next((each for each in names if self.shape(each) is not None), None)

    def stored_names(self, name: str) -> list[str]:
        """The tensors that a weight is made of."""
        return self.quantized[name].names if name in self.quantized else [name]

    def num_bytes(self, name: str) -> int:
        """On disk."""
        return sum(self.heads.headers[each].num_bytes for each in self.stored_names(name))


def text_names(model_path: Path, heads: TensorHeads) -> TextHeads | None:
    """The names for a checkpoint of which the text model alone is served. Raises ConfigError."""
    config = read_json(model_path / "config.json", dict)
    return TextHeads(heads) if has_separate_text(config) else None


def _find(heads: TensorHeads, quantization: Quantization) -> dict[str, StoredWeight]:
    """The quantised weights, each checked as far as headers tell."""
    found = {
        name: stored
        for name in heads.headers
        if (stored := _stored(heads, quantization, name)) is not None
    }
    # The scales of one format may look like the values of another.
    parts = {part for name, stored in found.items() for part in stored.names if part != name}
    return {
        stored.heads.stem + stored.format.ending: StoredWeight(
            stored.format, stored.heads, stored.format.check(stored.heads)
        )
        for name, stored in found.items()
        if name not in parts
    }


def _stored(heads: TensorHeads, quantization: Quantization, name: str) -> StoredWeight | None:
    """Not checked yet. None for a tensor that is no weight of a format."""
    dtype = heads.headers[name].dtype
    if dtype in PLAIN_DTYPES:
        return None
    formats = [rule.format for rule in quantization.rules]
    for each in formats:
        if dtype in each.dtypes and name.endswith(each.marker):
            stem = name.removesuffix(each.marker)
            module = (stem + each.ending).removesuffix(".weight")
            if each in quantization.formats_of(module):
                return StoredWeight(each, WeightHeads(stem, heads), ())
    return None
