"""Tokenizers by content hash: fetched once, parsed off the event loop, the oldest forgotten."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from tokenizers import Tokenizer

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError
from shared.telemetry.log import get_logger

_RETRY_S = 0.5
_MAX_ATTEMPTS = 20
_FETCH_TIMEOUT_S = 30.0

log = get_logger(__name__)


class TokenizerCache:
    """`get` never waits: a tokenizer that is not there is asked for, and `on_loaded` tells."""

    def __init__(
        self, catalog: ModelCatalog, capacity: int, on_loaded: Callable[[str], None]
    ) -> None:
        self._catalog = catalog
        self._capacity = capacity
        self._on_loaded = on_loaded
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()
        self._unusable: set[str] = set()
        self._wanted: set[str] = set()
        self._wake = asyncio.Event()

    def get(self, tokenizer_hash: str) -> Tokenizer | None:
        """The tokenizer, or None while it is being fetched."""
        tokenizer = self._tokenizers.get(tokenizer_hash)
        if tokenizer is not None:
            self._tokenizers.move_to_end(tokenizer_hash)
        elif tokenizer_hash not in self._wanted and tokenizer_hash not in self._unusable:
            self._wanted.add(tokenizer_hash)
            self._wake.set()
        return tokenizer

    def is_unusable(self, tokenizer_hash: str) -> bool:
        """Whether it could not be had after many attempts, with the store at hand."""
        return tokenizer_hash in self._unusable

    async def run(self) -> None:
        """Fetch what is wanted until cancelled, each on its own."""
        loading: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for tokenizer_hash in self._wanted - loading:
                    loading.add(tokenizer_hash)
                    tasks.create_task(self._load(tokenizer_hash, loading))

    async def _load(self, tokenizer_hash: str, loading: set[str]) -> None:
        num_refusals = 0
        while num_refusals < _MAX_ATTEMPTS:
            try:
                async with asyncio.timeout(_FETCH_TIMEOUT_S):
                    tokenizer = await self._fetch(tokenizer_hash)
            except (BrokerError, TimeoutError) as exc:
                log.warning("tokenizer_store_away", tokenizer=tokenizer_hash, error=str(exc))
            except Exception as exc:  # missing or unreadable; tokenizers raises plain Exception
                num_refusals += 1
                log.warning("tokenizer_unusable", tokenizer=tokenizer_hash, error=repr(exc))
            else:
                self._keep(tokenizer_hash, tokenizer)
                break
            await asyncio.sleep(_RETRY_S)
        else:
            self._unusable.add(tokenizer_hash)
        self._wanted.discard(tokenizer_hash)
        loading.discard(tokenizer_hash)
        self._on_loaded(tokenizer_hash)

    async def _fetch(self, tokenizer_hash: str) -> Tokenizer:
        bundle = await self._catalog.bundle(tokenizer_hash)
        return await asyncio.to_thread(bundle.tokenizer)

    def _keep(self, tokenizer_hash: str, tokenizer: Tokenizer) -> None:
        self._tokenizers[tokenizer_hash] = tokenizer
        while len(self._tokenizers) > self._capacity:
            self._tokenizers.popitem(last=False)
