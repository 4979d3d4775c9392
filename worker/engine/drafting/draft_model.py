"""A small model that guesses for a large one, and its keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from worker.engine.cache.req_to_token_pool import PageTables, ReqToTokenPool
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import Forward
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq


class DraftModel:
    """Its pool has the pages of the model that it guesses for: page 7 of the one holds the tokens
    of page 7 of the other, so that whoever gives pages out, or finds them by prefix, does it for
    both. Which of them the small model has filled, and with what, the pages' marks say.
    """

    def __init__(
        self, name: str, forward: Forward, pool: KVCachePool, max_context_len: int, num_outputs: int
    ) -> None:
        """`num_outputs`: tokens to choose from, of the large model: their logits are told."""
        self.name = name
        self.max_context_len = max_context_len
        self.page_size = pool.page_size
        self.num_outputs = num_outputs
        self._forward = forward
        self._pool = pool
        # [num_pages] int64: the hash of all tokens up to a page's end when it was filled
        self._marks = np.zeros(pool.num_pages + 1, np.int64)

    def release(self) -> None:
        """The memory of its pages, none of which is in use."""
        self._pool.release()
        self._marks[:] = 0

    def num_filled_pages(self, pages: Sequence[int], hashes: Sequence[int]) -> int:
        """How many of a request's first pages hold its tokens, hashed up to the end of each."""
        num_pages = min(len(pages), len(hashes))
        is_filled = self._marks[list(pages[:num_pages])] == np.array(hashes[:num_pages], np.int64)
        return num_pages if is_filled.all() else int(is_filled.argmin())

    def mark(self, pages: Sequence[int], hashes: Sequence[int]) -> None:
        """They are filled."""
        self._marks[list(pages)] = hashes

    def logits(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> torch.Tensor:
        """Behind the last token of each entry that asks: [num_samples, num_outputs] float32."""
        batch = ForwardBatch.from_schedule_batch(
            ScheduleBatch(entries, 0, []), PageTables(req_to_token), self.page_size, {}
        )
        hidden = self._forward.hidden(replace(batch, loras=None))
        if not len(batch.sample_idx):
            return torch.empty(0, self.num_outputs)
        logits = self._forward.logits(hidden[batch.sample_idx])
        num_missing = self.num_outputs - logits.shape[1]  # both may be padded
        if num_missing > 0:
            return torch.nn.functional.pad(logits, (0, num_missing), value=-torch.inf)
        return logits[:, : self.num_outputs].contiguous()
