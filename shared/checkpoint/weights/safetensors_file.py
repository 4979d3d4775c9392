"""One safetensors file: its tensors' types, shapes and places, as its head tells them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Self

import msgspec

from shared.checkpoint.json_file import regular_bytes
from shared.errors import ConfigError

_PREFIX_BYTES = 8  # the head's length, before it
_MAX_HEAD_BYTES = 100 << 20  # the format's own limit
_METADATA = "__metadata__"
_NAME_SHOWN = 100
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]  # as torch has it at most


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """The entry of one tensor, as it is written."""

    dtype: str
    shape: _Shape
    data_offsets: tuple[_Size, _Size]  # from the head's end; the second is behind its last byte


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is known of a tensor before it is read."""

    dtype: str  # as safetensors names it: "BF16", "F8_E4M3", "I32"
    shape: tuple[int, ...]
    num_bytes: int
    start: int  # bytes from the file's begin


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The head of a file, checked against its length."""

    path: Path
    num_bytes: int  # of the whole file
    tensors: dict[str, TensorHeader]  # by name

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError for what is missing, cut, or cannot be what it says."""
        try:
            num_bytes = regular_bytes(path)
            with path.open("rb") as stream:
                return cls(path, num_bytes, read_headers(str(path), stream, num_bytes))
        except FileNotFoundError:
            raise ConfigError(f"{path} is missing") from None
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    def read_bytes(self, name: str) -> bytes:
        """A tensor as it is stored. Raises ConfigError when it cannot be read."""
        header = self.tensors[name]
        try:
            with self.path.open("rb") as stream:
                stream.seek(header.start)
                return stream.read(header.num_bytes)
        except OSError as exc:
            raise ConfigError(f"cannot read {self.path}: {exc.strerror}") from exc


def read_headers(place: str, stream: BinaryIO, num_bytes: int) -> dict[str, TensorHeader]:
    """The heads of the tensors by name, where `stream` has this many bytes; `place` is for errors.

    Raises ConfigError.
    """
    head = _read_head(place, stream, num_bytes)
    start = _PREFIX_BYTES + len(head)
    tensors = _tensors(place, start, _entries(place, head))
    end = start + sum(tensor.num_bytes for tensor in tensors.values())
    if num_bytes != end:
        problem = "is cut: it" if num_bytes < end else "is no readable safetensors file: it"
        raise ConfigError(
            f"{place} {problem} has {num_bytes} bytes, its head says {end}; download it again"
        )
    return tensors


def _read_head(place: str, stream: BinaryIO, num_bytes: int) -> bytes:
    prefix = stream.read(_PREFIX_BYTES)
    if len(prefix) < _PREFIX_BYTES:
        raise ConfigError(f"{place} is cut: it has {num_bytes} bytes; download it again")
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEAD_BYTES:
        raise ConfigError(
            f"{place} is no readable safetensors file: its head would have {length} bytes, and at "
            f"most {_MAX_HEAD_BYTES} are allowed"
        )
    if length > num_bytes - _PREFIX_BYTES:
        raise ConfigError(
            f"{place} is cut: it has {num_bytes} bytes, and its head ends at "
            f"{_PREFIX_BYTES + length}; download it again"
        )
    return stream.read(length)


def _entries(place: str, head: bytes) -> dict[str, _Entry]:
    """The entries by name, in the order of their places."""
    try:
        raw = msgspec.json.decode(head, type=dict[str, msgspec.Raw])
        raw.pop(_METADATA, None)
        entries = {name: _entry(place, name, each) for name, each in raw.items()}
    except (ValueError, RecursionError) as exc:  # what is no UTF-8, too
        raise ConfigError(f"{place} is no readable safetensors file: its head: {exc}") from exc
    return dict(sorted(entries.items(), key=lambda each: each[1].data_offsets))


def _entry(place: str, name: str, raw: msgspec.Raw) -> _Entry:
    try:
        return msgspec.json.decode(raw, type=_Entry)
    except (ValueError, RecursionError) as exc:
        raise _wrong(place, name, f"is not told rightly: {exc}") from exc


def _tensors(place: str, start: int, entries: dict[str, _Entry]) -> dict[str, TensorHeader]:
    """Each begins where the one before it ends, the first at `start`."""
    tensors, last_end = {}, 0
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if begin != last_end:
            raise _wrong(
                place, name, f"begins at {begin}, and the one before it ends at {last_end}"
            )
        num_bytes = _num_bytes(place, name, entry)
        tensors[name] = TensorHeader(entry.dtype, entry.shape, num_bytes, start + begin)
        last_end = end
    return tensors


def _num_bytes(place: str, name: str, entry: _Entry) -> int:
    """The bytes by its type and shape, which its place has to fit."""
    bits = _BITS.get(entry.dtype)
    if bits is None:
        raise _wrong(place, name, f"is of type {_shown(entry.dtype)}, which is not known here")
    begin, end = entry.data_offsets
    if math.prod(entry.shape) * bits != 8 * (end - begin):
        raise _wrong(
            place,
            name,
            f"has {end - begin} bytes, which do not hold {entry.dtype} of shape {entry.shape}",
        )
    return end - begin


def _wrong(place: str, name: str, problem: str) -> ConfigError:
    return ConfigError(f"{place} is no readable safetensors file: tensor {_shown(name)} {problem}")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _NAME_SHOWN else f"{text[:_NAME_SHOWN]!r}..."
