"""Layers whose keys and values lie in one kind of pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionLayer

_SCALE_BYTES = torch.float32.itemsize


def kv_vector_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """A head's key, or value, of a token; in int8 it has a float32 scale of its own."""
    scale_bytes = _SCALE_BYTES if dtype == torch.int8 else 0
    return head_dim * dtype.itemsize + scale_bytes


@dataclass(frozen=True, slots=True)
class KVGroup:
    """What a pool of keys and values is made for."""

    layer_ids: tuple[int, ...]  # rising
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of keys and values
    page_size: int  # tokens
    num_vectors: int = 2  # of a token and a head: key and value; 1: a latent, which is both

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in all its layers."""
        vector_bytes = kv_vector_bytes(self.head_dim, self.dtype)
        return len(self.layer_ids) * self.num_vectors * self.num_kv_heads * vector_bytes

    @property
    def places(self) -> dict[int, int]:
        """Which of its layers each is, by layer id."""
        return {layer_id: place for place, layer_id in enumerate(self.layer_ids)}


def kv_groups(
    layers: Sequence[AttentionLayer], dtype: torch.dtype, page_size: int
) -> tuple[KVGroup, ...]:
    """One for each shape of keys, in the order of their first layers."""
    return tuple(
        KVGroup(
            tuple(layer_ids),
            shape.num_kv_heads,
            shape.head_dim,
            dtype,
            page_size,
            shape.num_vectors,
        )
        for shape, layer_ids in _by_shape(layers).items()
    )


def one_kv_group(layers: Sequence[AttentionLayer], dtype: torch.dtype, page_size: int) -> KVGroup:
    """The group of all layers. Raises ConfigError when they have several."""
    check_one_shape(layers)
    (group,) = kv_groups(layers, dtype, page_size)
    return group


def check_one_shape(layers: Sequence[AttentionLayer]) -> None:
    """Raises ConfigError for layers that make several groups: no engine has pools for them yet."""
    shapes = _by_shape(layers)
    if len(shapes) > 1:
        told = "; ".join(
            f"num_kv_heads={shape.num_kv_heads} and head_dim={shape.head_dim} in layer {ids[0]}"
            for shape, ids in shapes.items()
        )
        raise ConfigError(f"layers with keys of different shapes are not supported: {told}")


class _Shape(NamedTuple):
    num_kv_heads: int
    head_dim: int
    num_vectors: int


def _by_shape(layers: Sequence[AttentionLayer]) -> dict[_Shape, list[int]]:
    """Layer ids, by what they keep of a token."""
    shapes: dict[_Shape, list[int]] = {}
    for layer_id, layer in enumerate(layers):
        shape = _Shape(layer.num_kv_heads, layer.head_dim, layer.num_vectors)
        shapes.setdefault(shape, []).append(layer_id)
    return shapes
