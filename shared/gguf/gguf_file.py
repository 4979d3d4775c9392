"""One GGUF file: what it says of itself, and where its tensors lie."""

from __future__ import annotations

import itertools
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.errors import ConfigError
from shared.gguf.byte_cursor import ByteCursor, MetadataValue
from shared.gguf.tensor_types import TENSOR_TYPES, TensorType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME_LEN = 256  # llama.cpp's is 63


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies, and what it is."""

    path: Path
    name: str
    shape: tuple[int, ...]  # the last axis is contiguous, as in torch
    type: TensorType
    start: int  # bytes from the beginning of the file

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_values // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The head of a file, checked against its length."""

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: tuple[GgufTensor, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError for what is cut, of another format or of another version."""
        try:
            with path.open("rb") as stream:
                if stream.read(len(_MAGIC)) != _MAGIC:
                    raise ConfigError(f"{path} is no GGUF file: it does not begin with 'GGUF'")
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    return cls._parse(path, data)
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    @classmethod
    def _parse(cls, path: Path, data: mmap.mmap) -> Self:
        cursor = ByteCursor(data, str(path))
        cursor.position = len(_MAGIC)
        _check_version(path, cursor.integer("I"))
        num_tensors, num_values = cursor.integer("Q"), cursor.integer("Q")
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_values):
            key = cursor.string()
            if key in metadata:
                raise ConfigError(f"{path} tells {key!r} twice")
            metadata[key] = cursor.value()
        heads = [_TensorHead.read(path, cursor) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ConfigError(f"{path}: general.alignment is {alignment!r}, not a positive number")
        start = -(-cursor.position // alignment) * alignment
        tensors = tuple(head.placed(path, start, len(data)) for head in heads)
        if len({tensor.name for tensor in tensors}) < num_tensors:
            raise ConfigError(f"{path} holds two tensors of one name")
        _check_apart(path, tensors)
        return cls(path, metadata, tensors)


@dataclass(frozen=True, slots=True)
class _TensorHead:
    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int  # bytes from the first tensor's begin

    @classmethod
    def read(cls, path: Path, cursor: ByteCursor) -> Self:
        name = cursor.string()
        if len(name) > _MAX_NAME_LEN:
            raise ConfigError(f"{path} is damaged: a tensor's name has {len(name)} letters")
        num_dimensions = cursor.integer("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ConfigError(f"{path}: tensor {name!r} has {num_dimensions} dimensions")
        sizes = [int(size) for size in cursor.unpack(f"{num_dimensions}Q")]
        type_number, offset = cursor.integer("I"), cursor.integer("Q")
        tensor_type = TENSOR_TYPES.get(type_number)
        if tensor_type is None:
            raise ConfigError(
                f"{path}: tensor {name!r} is of type {type_number}, which is not known here: a "
                "retired one, or one of a later GGUF"
            )
        if min(sizes) < 1 or sizes[0] % tensor_type.block_size:
            raise ConfigError(
                f"{path}: tensor {name!r} has {sizes[0]} columns, which blocks of "
                f"{tensor_type.block_size} values ({tensor_type.name}) do not fill"
            )
        return cls(name, tuple(reversed(sizes)), tensor_type, offset)

    def placed(self, path: Path, start: int, file_bytes: int) -> GgufTensor:
        """Raises ConfigError when the file ends before it does."""
        tensor = GgufTensor(path, self.name, self.shape, self.type, start + self.offset)
        if tensor.start + tensor.num_bytes > file_bytes:
            raise ConfigError(
                f"{path} is cut: it has {file_bytes} bytes, and tensor {self.name!r} ends at "
                f"{tensor.start + tensor.num_bytes}; download it again"
            )
        return tensor


def _check_apart(path: Path, tensors: tuple[GgufTensor, ...]) -> None:
    by_place = sorted(tensors, key=lambda tensor: tensor.start)
    for before, after in itertools.pairwise(by_place):
        if before.start + before.num_bytes > after.start:
            raise ConfigError(
                f"{path} is damaged: tensor {after.name!r} begins at {after.start}, within "
                f"{before.name!r}; download it again"
            )


def _check_version(path: Path, version: int) -> None:
    if version in _VERSIONS:
        return
    if version & 0xFFFF == 0:
        raise ConfigError(f"{path} is a big-endian GGUF file, which is not supported")
    known = " and ".join(map(str, _VERSIONS))
    raise ConfigError(f"{path} is of GGUF version {version}; versions {known} are read here")
