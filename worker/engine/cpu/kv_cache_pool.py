"""The memory of keys and values."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch

from shared.checkpoint.stored_format import KVDTypeName
from worker.engine.layers.kv_group import KVGroup, kv_vector_bytes


def kv_cache_dtype(name: KVDTypeName, dtype: torch.dtype) -> torch.dtype:
    """On a CPU; `dtype` is the model's."""
    return torch.int8 if name == "int8" else dtype


class KVCachePool:
    """Keys and values of a group of layers, or latents that are both, in pages; within a page one
    head after the other.

    So the slots of a request and a head, gathered page by page, are one matrix. The last page is
    the padding page: never written. A page is wiped when it is handed out: what is read beyond a
    request's end is masked, but must be finite. In int8 a page of a head ends with its tokens'
    scales: only our C++ reads it.
    """

    def __init__(self, group: KVGroup, num_pages: int) -> None:
        self.group = group
        self.page_size = group.page_size
        self.num_pages = num_pages
        self.num_tokens = num_pages * group.page_size
        self._places = group.places
        # [num_layers, num_vectors, num_pages + 1, num_kv_heads, page_size, head_dim]; of int8 a
        # scale more
        vector_len = kv_vector_bytes(group.head_dim, group.dtype) // group.dtype.itemsize
        page_shape = group.num_kv_heads, group.page_size, vector_len
        layers_shape = len(group.layer_ids), group.num_vectors
        self._data = _allocate((*layers_shape, num_pages + 1, *page_shape), group.dtype)
        # [num_layers, num_vectors, num_pages + 1, bytes of a page], the same memory
        self._bytes = self._data.view(torch.uint8).flatten(3).numpy()
        self.wipe([num_pages])

    def keys_and_values(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_pages + 1, num_kv_heads, page_size, head_dim] each, views. Not of latents."""
        keys, values = self._data[self._places[layer_id]].unbind(0)
        return keys, values

    def vectors(self, layer_id: int) -> tuple[torch.Tensor, ...]:
        """The same: keys and values, or latents alone."""
        return self._data[self._places[layer_id]].unbind(0)

    def wipe(self, pages: Sequence[int]) -> None:
        for page in pages:  # torch takes three times as long, and more for all of them at once
            self._bytes[:, :, page] = 0


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory that stays with the operating system until it is used, then comes in huge pages.

    Attention jumps from page to page: with small ones each jump looks up an address.
    """
    num_values = math.prod(shape)
    if not num_values:  # an encoder has no layers that keep anything
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_values * dtype.itemsize)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
