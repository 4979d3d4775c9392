"""A tensor of a GGUF file as numbers: block by block, as gguf-py makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray

from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufTensor
from worker.engine.device.torch_threads import lone_threads
from worker.engine.formats.block_codes import BlockCodes
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight, join_rows
from worker.engine.formats.stored.gguf_blocks import BLOCK_TYPES, weight_of_blocks

_ROUNDED_INPUTS = 32
_CHUNK_VALUES = 1 << 18  # what one thread makes at once: a few megabytes, with all between
_CHUNK_BYTES = 8 << 20  # the same of blocks whose scales alone are read


def read_tensor(tensor: GgufTensor, dtype: torch.dtype, num_threads: int = 1) -> torch.Tensor:
    """The tensor in its shape, on the CPU. Beside what it returns it holds a few chunks in float32.

    Raises ConfigError for what are no numbers.
    """
    out = torch.empty(tensor.num_values, dtype=dtype)
    raw = np.memmap(tensor.path, np.uint8, "r", tensor.start, (tensor.num_bytes,))
    with lone_threads(num_threads) as threads:
        for _ in threads.map(_read_chunk, repeat(tensor), repeat(raw), repeat(out), _starts(out)):
            pass
    return out.view(tensor.shape)


def read_gguf_codes(tensor: GgufTensor, num_threads: int = 1) -> ScaledWeight | None:
    """A matrix as it is stored; its inputs are to be rounded in blocks of 32, as llama.cpp does it.
    None for types that have no codes. Raises ConfigError as `read_tensor` does.
    """
    if tensor.type.name not in BLOCK_TYPES:
        return None
    # Written to by nobody, which "c" tells torch, too.
    raw = np.memmap(tensor.path, np.uint8, "c", tensor.start, (tensor.num_bytes,))
    rows = torch.from_numpy(raw).view(tensor.num_values // tensor.shape[-1], -1)
    chunks = torch.split(rows, max(1, _CHUNK_BYTES // rows.shape[1]))
    with lone_threads(num_threads) as threads:
        joined = join_rows(list(threads.map(weight_of_blocks, repeat(tensor.type.name), chunks)))
    assert joined is not None, "they are of one type"
    for scales in (joined.scales, joined.minima):
        if scales is not None and not bool(torch.isfinite(scales).all()):
            raise _no_numbers(tensor)
    codes = BlockCodes.of(BLOCK_TYPES[tensor.type.name].codes, rows)
    return replace(joined, stored=codes, inputs=InputCodes(_ROUNDED_INPUTS))


def _no_numbers(tensor: GgufTensor) -> ConfigError:
    return ConfigError(f"{tensor.path}: tensor {tensor.name!r} has scales that are no numbers")


def _starts(out: torch.Tensor) -> Iterator[int]:
    yield from range(0, len(out), _CHUNK_VALUES)


def _read_chunk(tensor: GgufTensor, raw: NDArray[np.uint8], out: torch.Tensor, start: int) -> None:
    """Fills `out` from its value number `start` on. Every type's blocks divide a chunk."""
    from gguf import GGMLQuantizationType, dequantize  # half a second that others need not wait

    kind = tensor.type
    end = min(start + _CHUNK_VALUES, len(out))
    first, last = (each // kind.block_size for each in (start, end))
    # A copy: what lies in the file need not be aligned.
    data = np.array(raw[first * kind.block_bytes : last * kind.block_bytes])
    with np.errstate(all="ignore"):
        values = dequantize(data.reshape(1, -1), GGMLQuantizationType[kind.name])
    if not np.isfinite(values).all():
        raise _no_numbers(tensor)
    with torch.inference_mode():  # a thread's own; what reads the model may be in it
        out[start:end].copy_(torch.from_numpy(values.reshape(-1)))
