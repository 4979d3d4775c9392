"""The memory of keys and values on a GPU."""

from __future__ import annotations

import torch

from worker.engine.cuda.kv.kv_dtype import KV_FP8, to_kv_dtype


class GpuKVPool:
    """Keys and values of all layers, in pages; within a page one token after the other ("NHD").

    The last page is the padding page: rows of a CUDA graph that nobody uses write there.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self.num_tokens = num_pages * page_size
        self.dtype = dtype
        # [num_layers, 2, num_pages + 1, page_size, num_kv_heads, head_dim]
        self._data = torch.zeros(
            num_layers,
            2,
            num_pages + 1,
            page_size,
            num_kv_heads,
            head_dim,
            dtype=dtype,
            device=device,
        )

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    def keys_and_values(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_pages + 1, page_size, num_kv_heads, head_dim] each, views."""
        keys, values = self._data[layer_id].unbind(0)
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
