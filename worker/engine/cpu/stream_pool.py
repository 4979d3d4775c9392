"""What a model hands out of its residual stream, for a head that guesses for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.cpu.cache_memory import CacheMemory


class StreamPool:
    """Streams by slot, as keys and values are: the streams that came into some layers when the
    token there was computed; of a layer behind the last, what the last norm gave. Whoever finds a
    page by its prefix finds them, too.
    """

    def __init__(
        self, layers: Sequence[int], hidden_size: int, num_slots: int, dtype: torch.dtype
    ) -> None:
        self.layers = tuple(layers)
        self._memory = CacheMemory()
        # [num_slots, len(layers) * hidden_size]
        self._rows = self._memory.allocate((num_slots, len(layers) * hidden_size), dtype)

    def release(self) -> None:
        """Its memory, until it is written again. No slot may be in use."""
        self._memory.release()

    def write(self, slots: torch.Tensor, streams: torch.Tensor) -> None:
        """`slots` [num_tokens] int64; `streams` [num_tokens, len(layers) * hidden_size]."""
        self._rows.index_copy_(0, slots, streams.to(self._rows.dtype))

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, len(layers) * hidden_size]."""
        return self._rows[slots]
