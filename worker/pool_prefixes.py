"""Who in a pool of workers has which prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shared.prefix_chain import BLOCK_TOKENS, PrefixChain, with_image_ids
from shared.prefix_namespace import prefix_namespace
from shared.protocol import GenerateRequest
from worker.prefix_set import PrefixSet
from worker.served_weights import ServedWeights

_MAX_TOLD_BLOCKS = 16_384  # of each other worker


class Holder(NamedTuple):
    """A worker, and how much of a chain it has."""

    worker: str
    num_blocks: int


class PoolPrefixes:
    """What this worker has computed, and what the others of its pool have told of themselves.

    `own` is an estimate: the chains of the latest requests, as many as the KV cache has room for.
    The engine evicts by use as well, but by its own count, so that now and then a prefix that is
    believed to be here is gone, or the other way round. Either costs one prefill.
    """

    def __init__(self, weights: ServedWeights) -> None:
        self._weights = weights
        self.own = PrefixSet(0)
        self._others: dict[str, PrefixSet] = {}
        self._untold: list[bytes] = []
        self._has_untold = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether this worker takes part."""
        return self.own.max_blocks > 0

    def open(self, num_kv_tokens: int) -> None:
        """The engine is ready, and its cache empty."""
        self.own.clear()
        self.own.resize(num_kv_tokens // BLOCK_TOKENS)

    def close(self) -> None:
        """The cache is gone, or flushed."""
        self.own.clear()

    def namespace(self, request: GenerateRequest) -> bytes:
        """Only requests with the same one share keys and values."""
        return prefix_namespace(self._weights.revision, request.adapter, request.cache_salt)

    def chain(self, request: GenerateRequest) -> PrefixChain:
        """Of its prompt, unless that is in the object store."""
        prompt_ids = with_image_ids(request.prompt_ids, request.images)
        return PrefixChain(self.namespace(request), prompt_ids)

    def note(self, chain: PrefixChain) -> None:
        """The engine computes these tokens now, or has computed them."""
        new = self.own.add(chain.hashes)
        if new:
            self._untold += new
            self._has_untold.set()

    async def next_untold(self) -> list[bytes]:
        """Wait for something that the others have not been told, and take it."""
        await self._has_untold.wait()
        self._has_untold.clear()
        untold, self._untold = self._untold, []
        return untold

    def learn(self, worker: str, hashes: Sequence[bytes]) -> None:
        """Another worker says that it has these."""
        self._others.setdefault(worker, PrefixSet(_MAX_TOLD_BLOCKS)).add(hashes)

    def unlearn(self, worker: str, chain: PrefixChain) -> None:
        """It does not have this chain any more."""
        if worker in self._others:
            self._others[worker].discard(chain.hashes)

    def forget(self, worker: str) -> None:
        """It is gone, or does not answer. What it has is learnt again when it tells it."""
        self._others.pop(worker, None)

    def keep_only(self, workers: Iterable[str]) -> None:
        """Forget all workers but these."""
        alive = set(workers)
        self._others = {name: told for name, told in self._others.items() if name in alive}

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    def best_other(self, chain: PrefixChain) -> Holder | None:
        """The other worker with the longest part of it; None when nobody has a block."""
        best = max(
            (Holder(name, told.num_matching(chain.hashes)) for name, told in self._others.items()),
            key=lambda holder: holder.num_blocks,
            default=None,
        )
        return best if best is not None and best.num_blocks else None
