"""How many queries and keys a program of an attention kernel multiplies at a time.

More of both read less memory; too many leave no registers, or more shared memory than the GPU has
(CUDA C++ Programming Guide, table "Technical specifications per compute capability").
`tests/worker/engine/cuda/compile_kernels.py` compiles them for each GPU, and counts both.
"""

from __future__ import annotations

import torch

from worker.engine.layers.attention_backend import AttentionLayer

Capability = tuple[int, int]

MIN_TILE = 16  # rows, keys or dimensions of a matrix product on tensor cores
MOST_KEYS = 64
_DECODED_VALUES = 1 << 13  # sums in the registers of a program's four warps

_KIB = 1024
_SHARED_BYTES = {  # that a program may have
    (7, 0): 96 * _KIB,
    (7, 5): 64 * _KIB,
    (8, 0): 163 * _KIB,
    (8, 7): 163 * _KIB,
    (9, 0): 227 * _KIB,
    (10, 0): 227 * _KIB,
    (10, 3): 227 * _KIB,
    (11, 0): 227 * _KIB,
}
_LEAST_SHARED_BYTES = 99 * _KIB  # 8.6, 8.9, 12.0, 12.1
_WIDE_PRODUCTS = (9, 10)  # major versions: four warps multiply together, out of shared memory


def shared_bytes(capability: Capability) -> int:
    """That a program may have."""
    return _SHARED_BYTES.get(capability, _LEAST_SHARED_BYTES)


def extend_rows(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """Queries times the heads that share a KV head, of the extend kernel's programs."""
    rows = 32 if dtype == torch.float32 else 128
    dims = 256 if dtype == torch.float32 else 128
    return max(MIN_TILE, min(rows, rows * dims // _power_of_two(layer.num_values)))


def extend_heads(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """How many heads that share a KV head a program of the extend kernel has."""
    return min(layer.group, extend_rows(layer, dtype))


def extend_keys(layer: AttentionLayer, dtype: torch.dtype, capability: Capability) -> int:
    """That the extend kernel's programs read at a time."""
    most = MOST_KEYS if capability[0] in _WIDE_PRODUCTS else MOST_KEYS // 2
    if dtype == torch.float32:
        most = MIN_TILE
    return _fitting(most, extend_rows(layer, dtype), layer, dtype, capability)


def decode_rows(layer: AttentionLayer) -> int:
    """The heads that share a KV head, or some of them, of the decode kernel's programs."""
    most = max(MIN_TILE, _DECODED_VALUES // _power_of_two(layer.num_values))
    return min(most, max(MIN_TILE, _power_of_two(layer.group)))


def decode_keys(layer: AttentionLayer, dtype: torch.dtype, capability: Capability) -> int:
    """That the decode kernel's programs read at a time."""
    rows = decode_rows(layer)
    values = (1 << 16) // rows if dtype == torch.float32 else 1 << 14
    most = max(MIN_TILE, min(MOST_KEYS, values // _power_of_two(layer.num_values)))
    return _fitting(most, rows, layer, dtype, capability)


def least_bytes(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """Bytes of shared memory that the smallest programs take."""
    return _taken_bytes(max(decode_rows(layer), extend_rows(layer, dtype)), MIN_TILE, layer, dtype)


def _fitting(
    num_keys: int, rows: int, layer: AttentionLayer, dtype: torch.dtype, capability: Capability
) -> int:
    """The keys of a tile: as many as given, or fewer where there is too little shared memory."""
    room = shared_bytes(capability)
    while num_keys > MIN_TILE and _taken_bytes(rows, num_keys, layer, dtype) > room:
        num_keys //= 2
    return num_keys


def _taken_bytes(rows: int, num_keys: int, layer: AttentionLayer, dtype: torch.dtype) -> int:
    """Queries, keys, values, and their weights."""
    dims = max(MIN_TILE, _power_of_two(layer.num_values))
    taken = dims * (rows + 2 * num_keys) + rows * num_keys
    if layer.num_values < layer.head_dim:
        taken += max(MIN_TILE, _power_of_two(layer.head_dim - layer.num_values)) * (rows + num_keys)
    return taken * dtype.itemsize


def _power_of_two(number: int) -> int:
    """The least that is not smaller."""
    return 1 << (number - 1).bit_length()
