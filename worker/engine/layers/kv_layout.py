"""What a page of keys and values holds: for layers of several shapes, a part for each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from worker.engine.layers.attention_backend import AttentionLayer

_SCALE_BYTES = torch.float32.itemsize


def kv_vector_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """A head's key, or value, of a token; in int8 it has a float32 scale of its own."""
    scale_bytes = _SCALE_BYTES if dtype == torch.int8 else 0
    return head_dim * dtype.itemsize + scale_bytes


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep as much of a token as each other, and as long."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_vectors: int = 2  # of a token and a head: key and value; 1: a latent, which is both
    has_window: bool = False  # what lies before `KVLayout.window` is not read again


class KVPlace(NamedTuple):
    """Where a layer's keys and values are."""

    group: int  # its index in the layout
    layer: int  # which layer of the group


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a pool of keys and values is made for.

    A page has room for `page_size` tokens in the layers of several groups, each of which has memory
    of its own: page 7 of one group holds the same tokens as page 7 of another. Groups with a window
    may have pages with numbers of their own: fewer ones.
    """

    groups: tuple[KVGroup, ...]  # in the order of their first layers
    places: Mapping[int, KVPlace]  # by layer id; layers that share keys and values have one place
    dtype: torch.dtype  # of keys and values
    page_size: int  # tokens
    window: int | None = None  # the longest of those groups that have one

    @classmethod
    def of(cls, layers: Sequence[AttentionLayer], dtype: torch.dtype, page_size: int) -> Self:
        """One group for each shape of what layers keep, and one more where some have a window."""
        reaches = _reaches(layers)
        nums_layers: dict[_Shape, int] = {}
        places: dict[int, KVPlace] = {}
        for layer_id, layer in enumerate(layers):
            if layer.kv_layer_id is not None:
                places[layer_id] = places[layer.kv_layer_id]
                continue
            has_window = reaches[layer_id] is not None
            shape = _Shape(layer.num_kv_heads, layer.head_dim, layer.num_vectors, has_window)
            num_before = nums_layers.setdefault(shape, 0)
            places[layer_id] = KVPlace([*nums_layers].index(shape), num_before)
            nums_layers[shape] += 1
        groups = tuple(KVGroup(num_layers, *shape) for shape, num_layers in nums_layers.items())
        windows = [reach for reach in reaches.values() if reach is not None]
        return cls(groups, places, dtype, page_size, max(windows, default=None))

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in all layers."""
        return sum(map(self._bytes_of, self.groups))

    @property
    def window_bytes_per_token(self) -> int:
        """In those with a window."""
        return sum(self._bytes_of(group) for group in self.groups if group.has_window)

    def _bytes_of(self, group: KVGroup) -> int:
        vector_bytes = kv_vector_bytes(group.head_dim, self.dtype)
        return group.num_layers * group.num_vectors * group.num_kv_heads * vector_bytes


def _reaches(layers: Sequence[AttentionLayer]) -> dict[int, int | None]:
    """How much is read of what each layer keeps, by layers that share it, too; None: all."""
    reaches: dict[int, int | None] = {}
    for layer_id, layer in enumerate(layers):
        kept_id = layer_id if layer.kv_layer_id is None else layer.kv_layer_id
        most = reaches.get(kept_id, 0)
        reaches[kept_id] = None if most is None or layer.reach is None else max(most, layer.reach)
    return reaches


class _Shape(NamedTuple):
    num_kv_heads: int
    head_dim: int
    num_vectors: int
    has_window: bool
