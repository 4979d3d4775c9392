"""Matrices of numbers in bodies: safetensors or what torch.save writes, and lists.

Nothing of them is executed: of a pickle the few operations that describe a tensor are read as data.
"""

from __future__ import annotations

import array
import io
import itertools
import pickletools
import struct
import sys
import zipfile
from dataclasses import dataclass
from typing import Any

from shared.checkpoint.weights.safetensors_file import read_headers
from shared.errors import ConfigError, InvalidRequest
from shared.protocol.request import EmbedsDtype

_SAFETENSORS = {
    "F32": EmbedsDtype.FLOAT32,
    "F16": EmbedsDtype.FLOAT16,
    "BF16": EmbedsDtype.BFLOAT16,
}
_TORCH = {
    "torch FloatStorage": EmbedsDtype.FLOAT32,
    "torch HalfStorage": EmbedsDtype.FLOAT16,
    "torch BFloat16Storage": EmbedsDtype.BFLOAT16,
}
_ZIP = b"PK\x03\x04"
_MAX_HEAD_BYTES = 64 * 1024
# What the readers of both formats, of zip and of pickle raise where bytes are not of their kind.
_BROKEN = (
    *(ConfigError, zipfile.BadZipFile, struct.error, ValueError, KeyError, OverflowError),
    *(EOFError, OSError, RuntimeError),
)
# By the bytes of a number of 16 bits: whether all bits of its exponent in it are set.
_HIGH_OF = {
    EmbedsDtype.FLOAT16: bytes(each & 0x7C == 0x7C for each in range(256)),
    EmbedsDtype.BFLOAT16: bytes(each & 0x7F == 0x7F for each in range(256)),
}
_LOW_OF = {
    EmbedsDtype.FLOAT16: bytes([1] * 256),
    EmbedsDtype.BFLOAT16: bytes(each >> 7 for each in range(256)),
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length, all finite."""

    dtype: EmbedsDtype
    num_rows: int
    width: int
    data: bytes  # [num_rows, width], little-endian


def matrix_of_file(data: bytes, name: str) -> Matrix:
    """The one tensor in it: [num_rows, width], or [1, num_rows, width]. Raises InvalidRequest."""
    try:
        dtype, shape, content = _read_torch(data) if data[:4] == _ZIP else _read_safetensors(data)
    except _Unreadable as exc:
        raise InvalidRequest(f"'{name}': {exc}", param=name) from exc
    except _BROKEN as exc:
        raise InvalidRequest(
            f"'{name}' is neither a file of safetensors nor one of torch.save", param=name
        ) from exc
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2 or 0 in shape:
        raise InvalidRequest(
            f"'{name}' is a tensor of the shape {list(shape)}, must be [tokens, size]", param=name
        )
    return _checked(Matrix(dtype, shape[0], shape[1], content), name)


def matrix_of_lists(rows: list[list[Any]], name: str) -> Matrix:
    """Raises InvalidRequest."""
    widths = {len(row) for row in rows}
    if len(widths) != 1 or widths == {0}:
        raise InvalidRequest(f"'{name}' must hold rows of equal length", param=name)
    try:
        numbers = array.array("f", itertools.chain.from_iterable(rows))
    except (TypeError, OverflowError) as exc:
        raise InvalidRequest(f"'{name}' must hold numbers", param=name) from exc
    if sys.byteorder == "big":
        numbers.byteswap()
    matrix = Matrix(EmbedsDtype.FLOAT32, len(rows), widths.pop(), numbers.tobytes())
    return _checked(matrix, name)


def _checked(matrix: Matrix, name: str) -> Matrix:
    if not _is_finite(matrix):
        raise InvalidRequest(f"'{name}' holds a number that is not finite", param=name)
    return matrix


def _is_finite(matrix: Matrix) -> bool:
    data = matrix.data
    if matrix.dtype is EmbedsDtype.FLOAT32:
        high, low = data[3::4].translate(_HIGH_OF[EmbedsDtype.BFLOAT16]), data[2::4]
        low = low.translate(_LOW_OF[EmbedsDtype.BFLOAT16])
    else:
        high, low = data[1::2].translate(_HIGH_OF[matrix.dtype]), data[::2]
        low = low.translate(_LOW_OF[matrix.dtype])
    return not int.from_bytes(high) & int.from_bytes(low)


class _Unreadable(Exception):
    """It is a file of its kind, but nothing that we take."""


def _read_safetensors(data: bytes) -> tuple[EmbedsDtype, tuple[int, ...], bytes]:
    """Raises ConfigError or _Unreadable."""
    tensors = list(read_headers("it", io.BytesIO(data), len(data)).values())
    if len(tensors) != 1:
        raise _Unreadable(f"it holds {len(tensors)} tensors, must hold one")
    tensor = tensors[0]
    return _dtype_of(tensor.dtype, _SAFETENSORS), tensor.shape, data[tensor.start :]


def _read_torch(data: bytes) -> tuple[EmbedsDtype, tuple[int, ...], bytes]:
    """Raises ValueError, KeyError, BadZipFile or _Unreadable."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        [head_name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        head = _part(archive, head_name, _MAX_HEAD_BYTES)
        match _described(head):
            case (
                "call",
                "torch._utils _rebuild_tensor_v2",
                (
                    ("stored", ("storage", str(kind), str(key), _, int())),
                    int(offset),
                    tuple(shape),
                    tuple(stride),
                    *_,
                ),
            ) if all(isinstance(each, int) for each in (*shape, *stride)):
                pass
            case _:
                raise _Unreadable("what torch.save has written is no plain tensor")
        dtype = _dtype_of(kind, _TORCH)
        folder = head_name.removesuffix("data.pkl")
        stored = _part(archive, f"{folder}data/{key}", len(data))
        order = f"{folder}byteorder"
        if order in archive.namelist() and _part(archive, order, 16) != b"little":
            raise _Unreadable("its numbers are big-endian")
    content = stored[offset * dtype.num_bytes :] if offset >= 0 else b""
    num_bytes = _num_bytes(shape, dtype)
    if stride != _contiguous(shape):
        raise _Unreadable("its tensor is a view: save tensor.contiguous()")
    _check_size(shape, dtype, min(len(content), num_bytes))
    return dtype, shape, content[:num_bytes]


def _part(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """torch.save compresses nothing."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > max_bytes:
        raise _Unreadable("its parts are not as torch.save writes them")
    return archive.read(info)


def _described(pickled: bytes) -> Any:
    """What a pickle describes: tuples, numbers and texts, and of what it would call or load a tuple
    that says so. Raises ValueError or _Unreadable.
    """
    stack: list[Any] = []
    marks: list[int] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        match opcode.name:
            case "PROTO" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE" | "FRAME":
                pass
            case "GLOBAL" | "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2":
                stack.append(argument)
            case "LONG1" | "NEWTRUE" | "NEWFALSE" | "NONE":
                stack.append(argument)
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                marks.append(len(stack))
            case "TUPLE" if marks:
                at = marks.pop()
                stack[at:] = [tuple(stack[at:])]
            case "TUPLE1" | "TUPLE2" | "TUPLE3" if len(stack) >= (num := int(opcode.name[-1])):
                stack[-num:] = [tuple(stack[-num:])]
            case "BINPERSID" if stack:
                stack[-1] = ("stored", stack[-1])
            case "REDUCE" if len(stack) >= 2:
                stack[-2:] = [("call", *stack[-2:])]
            case "STOP" if len(stack) == 1:
                return stack[0]
            case _:
                break
    raise _Unreadable("what torch.save has written is no plain tensor")


def _dtype_of(name: str, known: dict[str, EmbedsDtype]) -> EmbedsDtype:
    if name not in known:
        raise _Unreadable(f"its numbers are {name[:40]!r}, must be of {', '.join(EmbedsDtype)}")
    return known[name]


def _num_bytes(shape: tuple[int, ...], dtype: EmbedsDtype) -> int:
    num = dtype.num_bytes
    for size in shape:
        num *= size
    return num


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The stride of rows one after the other."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(shape)]))


def _check_size(shape: tuple[int, ...], dtype: EmbedsDtype, num_bytes: int) -> None:
    if min(shape, default=0) < 0 or num_bytes != _num_bytes(shape, dtype):
        raise _Unreadable(f"its tensor of the shape {list(shape)} does not take {num_bytes} bytes")
