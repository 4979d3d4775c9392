"""The memory of keys and values on a GPU."""

from __future__ import annotations

import torch

from worker.engine.cuda.kv.kv_dtype import KV_FP8, to_kv_dtype
from worker.engine.layers.kv_group import KVGroup


class GpuKVPool:
    """Keys and values of a group of layers, in pages; in each one token after the other ("NHD").

    The last page is the padding page: rows of a CUDA graph that nobody uses write there.
    """

    def __init__(self, group: KVGroup, num_pages: int, device: torch.device) -> None:
        self.group = group
        self.page_size = group.page_size
        self.num_pages = num_pages
        self.num_tokens = num_pages * group.page_size
        self.dtype = group.dtype
        self._places = group.places
        # [num_layers, 2, num_pages + 1, page_size, num_kv_heads, head_dim]
        self._data = torch.zeros(
            len(group.layer_ids),
            2,
            num_pages + 1,
            group.page_size,
            group.num_kv_heads,
            group.head_dim,
            dtype=group.dtype,
            device=device,
        )

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    def keys_and_values(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_pages + 1, page_size, num_kv_heads, head_dim] each, views."""
        keys, values = self._data[self._places[layer_id]].unbind(0)
        return keys, values

    def write(
        self, layer_id: int, out_loc: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """[num_tokens, num_kv_heads, head_dim] each, into slots `out_loc` [num_tokens] int64."""
        for data, new in zip(self.keys_and_values(layer_id), (keys, values), strict=True):
            slots = _copyable(data.flatten(0, 1))
            slots.index_copy_(0, out_loc, _copyable(to_kv_dtype(new, self.dtype)))


def _copyable(values: torch.Tensor) -> torch.Tensor:
    """torch copies no rows of eight-bit floats by an index: their bytes, then."""
    return values.view(torch.uint8) if values.dtype == KV_FP8 else values
