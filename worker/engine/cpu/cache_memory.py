"""Memory that is the operating system's until it is written, and can be given back to it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch


class CacheMemory:
    """Tensors of zeros in huge pages.

    Attention jumps from page to page: with small ones each jump looks up an address.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self._maps.append(memory)
        return torch.frombuffer(memory, dtype=dtype).view(*shape)

    def release(self) -> None:
        """All tensors are zeros again, at their old addresses, and take no memory."""
        for memory in self._maps:
            memory.madvise(mmap.MADV_REMOVE)  # MADV_DONTNEED leaves it: it is shared memory
