"""What guesses for a large model, over the same pages, and its keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from worker.engine.cache.req_to_token_pool import PageTables, ReqToTokenPool
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import Forward
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.models.model import ModelInput
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq


class Draft(ABC):
    """Its pool has the pages of the model that it guesses for: page 7 of the one holds the tokens
    of page 7 of the other, so that whoever gives pages out, or finds them by prefix, does it for
    both. Which of them it has filled, and with what, the pages' marks say.
    """

    num_ahead = 0  # tokens behind a slot's own that what it keeps there depends on

    def __init__(
        self, name: str, pool: KVCachePool, max_context_len: int, num_outputs: int
    ) -> None:
        """`num_outputs`: tokens to choose from, of the large model: their logits are told."""
        self.name = name
        self.max_context_len = max_context_len
        self.page_size = pool.page_size
        self.num_outputs = num_outputs
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

    @abstractmethod
    def logits(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> torch.Tensor:
        """Behind the last token of each entry that asks: [num_samples, num_outputs] float32."""

    def _batch(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> ForwardBatch:
        batch = ForwardBatch.from_schedule_batch(
            ScheduleBatch(entries, 0, []), PageTables(req_to_token), self.page_size, {}
        )
        return replace(batch, loras=None)


class DraftModel(Draft):
    """A small model."""

    def __init__(
        self, name: str, forward: Forward, pool: KVCachePool, max_context_len: int, num_outputs: int
    ) -> None:
        super().__init__(name, pool, max_context_len, num_outputs)
        self._forward = forward

    def logits(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> torch.Tensor:
        batch = self._batch(entries, req_to_token)
        hidden = self._forward.hidden(batch)
        if not len(batch.sample_idx):
            return torch.empty(0, self.num_outputs)
        logits = self._forward.logits(hidden[batch.sample_idx])
        num_missing = self.num_outputs - logits.shape[1]  # both may be padded
        if num_missing > 0:
            return functional.pad(logits, (0, num_missing), value=-torch.inf)
        return logits[:, : self.num_outputs].contiguous()


Rows = Callable[[torch.Tensor], torch.Tensor]


class Head(Protocol):
    """A layer that guesses with the streams of a large model."""

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]: ...

    def given(self, streams: torch.Tensor) -> torch.Tensor:
        """What `forward` is given of tokens that the large model knows: a row of each one's streams
        -> [num_tokens, hidden_size].
        """
        ...

    def forward(
        self,
        batch: ModelInput,
        asking: torch.Tensor,  # [num_samples] int64, indices into the tokens
        embeddings: torch.Tensor,  # [num_tokens, hidden_size], each of the token behind one
        given: torch.Tensor,  # [num_tokens, hidden_size], or what was made of the one before
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """What it makes of those asked for, [num_samples, hidden_size]."""
        ...


class DraftHead(Draft):
    """A head. Slot p is of the large model's streams at p, which `streams` has, and of the token
    behind it. Behind a guess it goes on with what it has itself made of the slot before.

    Of two running requests that share pages and part where a page ends, the last slot there has the
    token of the one that wrote it last: the other may guess a little worse.
    """

    num_ahead = 1

    def __init__(
        self,
        name: str,
        head: Head,
        pool: KVCachePool,
        streams: StreamPool,
        embeddings: Rows,  # [num_tokens] int64 -> [num_tokens, hidden_size]
        head_logits: Rows,  # of what it has made: [num_samples, num_outputs] float32
        max_context_len: int,
        num_outputs: int,
    ) -> None:
        super().__init__(name, pool, max_context_len, num_outputs)
        self._head = head
        self._streams = streams
        self._embeddings = embeddings
        self._logits = head_logits
        self._attention = TorchAttentionBackend(pool, head.attention_layers)
        self._made: dict[Req, torch.Tensor] = {}  # of the slot before, by the requests of a chain

    def release(self) -> None:
        super().release()
        self._streams.release()

    def logits(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> torch.Tensor:
        batch = self._batch(entries, req_to_token)
        is_behind_guess = bool(entries) and bool(entries[0].draft_ids)  # all of them, or none
        if is_behind_guess:
            given = torch.stack([self._made[entry.req] for entry in entries])
        else:
            given = self._head.given(self._streams.read(batch.out_loc))
        input_ids = torch.tensor([each for entry in entries for each in _tokens_behind(entry)])
        embeddings = self._embeddings(input_ids)
        self._attention.plan(batch)
        made = self._head.forward(batch, batch.sample_idx, embeddings, given, self._attention)
        asking = (entry.req for entry in entries if entry.num_samples)
        self._made = dict(zip(asking, made, strict=True))
        return self._logits(made)


def _tokens_behind(entry: ScheduledReq) -> Sequence[int]:
    return entry.draft_ids or entry.req.token_ids[entry.start + 1 : entry.end + 1]
