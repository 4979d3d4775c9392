"""The memory of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from shared.checkpoint.stored_format import KVDTypeName
from worker.engine.cpu.cache_memory import CacheMemory
from worker.engine.layers.kv_layout import KVGroup, KVLayout, kv_vector_bytes
from worker.engine.tiers.kv_tier import PageContent


def kv_cache_dtype(name: KVDTypeName, dtype: torch.dtype) -> torch.dtype:
    """On a CPU; `dtype` is the model's."""
    return torch.int8 if name == "int8" else dtype


class KVCachePool:
    """Keys and values of all layers, or latents that are both, in pages; within a page of a layer
    one head after the other.

    So the slots of a request and a head, gathered page by page, are one matrix. The last page is
    the padding page: never written. A page is wiped when it is handed out: what is read beyond a
    request's end is masked, but must be finite. In int8 a page of a head ends with its tokens'
    scales: only our C++ reads it.
    """

    def __init__(
        self, layout: KVLayout, num_pages: int, num_window_pages: int | None = None
    ) -> None:
        """`num_window_pages`: that groups with a window have, of their own; None: they do not."""
        self.layout = layout
        self.page_size = layout.page_size
        self.num_pages = num_pages
        self.num_window_pages = num_window_pages
        self.num_tokens = num_pages * layout.page_size
        self._memory = CacheMemory()
        # By group, [num_layers, num_vectors, num_pages + 1, num_kv_heads, page_size, head_dim]; of
        # int8 a scale more
        self._data = [self._allocate_for(group) for group in layout.groups]
        # [num_layers, num_vectors, num_pages + 1, bytes of a page] each, the same memory
        self._bytes = [data.view(torch.uint8).flatten(3).numpy() for data in self._data]

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for data in self._data)

    def release(self) -> None:
        """Its memory, until it is written again. No page may be in use."""
        self._memory.release()

    def keys_and_values(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_pages + 1, num_kv_heads, page_size, head_dim] each, views. Not of latents."""
        keys, values = self.vectors(layer_id)
        return keys, values

    def vectors(self, layer_id: int) -> tuple[torch.Tensor, ...]:
        """The same: keys and values, or latents alone."""
        place = self.layout.places[layer_id]
        return self._data[place.group][place.layer].unbind(0)

    def has_window(self, layer_id: int) -> bool:
        """Whether its pages are numbered by themselves."""
        return self._is_apart(self.layout.groups[self.layout.places[layer_id].group])

    def wipe(self, pages: Sequence[int], window_pages: Sequence[int] = ()) -> None:
        for group, each in zip(self.layout.groups, self._bytes, strict=True):
            # torch takes three times as long, and more for all of them at once
            for page in window_pages if self._is_apart(group) else pages:
                each[:, :, page] = 0

    @property
    def num_page_bytes(self) -> int:
        """In all layers, none of which has pages of its own."""
        return self.layout.bytes_per_token * self.page_size

    def read_page(self, page: int, content: PageContent) -> None:
        for part, each in self._parts(content):
            part[:] = each[:, :, page]

    def write_page(self, page: int, content: PageContent) -> None:
        for part, each in self._parts(content):
            each[:, :, page] = part

    def _parts(self, content: PageContent) -> Iterator[tuple[PageContent, PageContent]]:
        """The parts of each group, [num_layers, num_vectors, bytes of a page], and its memory."""
        start = 0
        for each in self._bytes:
            num_layers, num_vectors, _, num_bytes = each.shape
            end = start + num_layers * num_vectors * num_bytes
            yield content[start:end].reshape(num_layers, num_vectors, num_bytes), each
            start = end

    def _is_apart(self, group: KVGroup) -> bool:
        return self.num_window_pages is not None and group.has_window

    def _allocate_for(self, group: KVGroup) -> torch.Tensor:
        dtype = self.layout.dtype
        vector_len = kv_vector_bytes(group.head_dim, dtype) // dtype.itemsize
        page_shape = group.num_kv_heads, self.page_size, vector_len
        num_pages = self.num_window_pages if self._is_apart(group) else self.num_pages
        assert num_pages is not None
        return self._memory.allocate(
            (group.num_layers, group.num_vectors, num_pages + 1, *page_shape), dtype
        )
