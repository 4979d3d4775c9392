"""The memory of keys and values on a GPU."""

from __future__ import annotations

import torch

from worker.engine.cuda.kv.kv_dtype import KV_FP8, to_kv_dtype
from worker.engine.layers.kv_layout import KVLayout


class GpuKVPool:
    """Keys and values of all layers, in pages; in each one token after the other ("NHD").

    The last page is the padding page: rows of a CUDA graph that nobody uses write there.
    """

    def __init__(self, layout: KVLayout, num_pages: int, device: torch.device) -> None:
        self.page_size = layout.page_size
        self.num_pages = num_pages
        self.num_window_pages: int | None = None
        self.num_tokens = num_pages * layout.page_size
        self.dtype = layout.dtype
        self._places = layout.places
        # By group, [num_layers, num_vectors, num_pages + 1, page_size, num_kv_heads, head_dim]
        self._data = [
            torch.zeros(
                group.num_layers,
                group.num_vectors,
                num_pages + 1,
                layout.page_size,
                group.num_kv_heads,
                group.head_dim,
                dtype=layout.dtype,
                device=device,
            )
            for group in layout.groups
        ]

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for data in self._data)

    def keys_and_values(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_pages + 1, page_size, num_kv_heads, head_dim] each, views; of latents the same."""
        vectors = self._vectors(layer_id)
        return vectors[0], vectors[-1]

    def write(
        self, layer_id: int, out_loc: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """[num_tokens, num_kv_heads, head_dim] each, into slots `out_loc` [num_tokens] int64."""
        for data, new in zip(self._vectors(layer_id), (keys, values), strict=False):
            slots = _copyable(data.flatten(0, 1))
            slots.index_copy_(0, out_loc, _copyable(to_kv_dtype(new, self.dtype)))

    def _vectors(self, layer_id: int) -> torch.Tensor:
        """[num_vectors, num_pages + 1, page_size, num_kv_heads, head_dim]."""
        place = self._places[layer_id]
        return self._data[place.group][place.layer]


def _copyable(values: torch.Tensor) -> torch.Tensor:
    """torch copies no rows of eight-bit floats by an index: their bytes, then."""
    return values.view(torch.uint8) if values.dtype == KV_FP8 else values
