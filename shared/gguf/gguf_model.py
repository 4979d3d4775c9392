"""A model as one GGUF file, or as the files that it was split into."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufFile, GgufTensor
from shared.gguf.metadata import Metadata
from shared.gguf.tensor_types import MIXTURES

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All tensors, wherever they lie, and the first file's metadata."""

    paths: tuple[Path, ...]
    metadata: Metadata
    tensors: dict[str, GgufTensor]  # by name

    @classmethod
    def read(cls, path: Path) -> Self:
        """`path` is any of its files. Raises ConfigError, also when one of them is missing."""
        paths = part_paths(path)
        files = [GgufFile.read(each) for each in paths]
        metadata = Metadata(paths[0], files[0].metadata)
        count = metadata.integer("split.count", 1)
        if count not in (0, 1, len(paths)):
            raise ConfigError(
                f"{paths[0]} is one of {count} files, and its name does not say which: keep the "
                f"names that end in -00001-of-{count:05}.gguf"
            )
        tensors = {tensor.name: tensor for file in files for tensor in file.tensors}
        if not tensors:
            raise ConfigError(f"{paths[0]} holds no tensors: it is a vocabulary alone")
        return cls(tuple(paths), metadata, tensors)

    @property
    def num_values(self) -> int:
        return sum(tensor.num_values for tensor in self.tensors.values())

    @property
    def num_weight_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_weight_bytes / self.num_values

    @property
    def format(self) -> str:
        """`GGUF Q4_K_M`: the mixture that it is called, or the type of most of its values."""
        mixture = MIXTURES.get(self.metadata.integer("general.file_type", 1024))
        return f"GGUF {mixture or self._main_type()}"

    def _main_type(self) -> str:
        num_values = Counter[str]()
        for tensor in self.tensors.values():
            num_values[tensor.type.name] += tensor.num_values
        return num_values.most_common(1)[0][0]


def holds_gguf(folder: Path) -> bool:
    """Whether its weights are GGUF files, and no others."""
    return any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors"))


def part_paths(path: Path) -> list[Path]:
    """The files of a split model, in order; or `path` alone. Raises ConfigError."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    paths = [path.with_name(name) for name in part_names(path.name)]
    missing = [each.name for each in paths if not each.exists()]
    if missing:
        raise ConfigError(
            f"{path.parent} has not all {len(paths)} files of {match['stem']}: "
            f"{', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} missing"
        )
    return paths


def part_names(name: str) -> list[str]:
    """The names of all files of the model that has one called `name`."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def model_stem(name: str) -> str:
    """The name of a model by that of one of its files: without its end and its number."""
    match = _PART.fullmatch(name)
    return match["stem"] if match else name.removesuffix(".gguf")
