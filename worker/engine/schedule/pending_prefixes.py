"""Prefixes that running prefills are about to put into the cache."""

from __future__ import annotations

from collections import Counter

from worker.engine.request.req import Req
from worker.engine.schedule.kv_ledger import KVLedger

MIN_TOKENS = 32  # fewer are computed again as fast as waited for


class PendingPrefixes:
    """What is being computed, page by page, so that nobody starts to compute the same."""

    def __init__(self, ledger: KVLedger) -> None:
        self._ledger = ledger
        self._min_pages = -(-MIN_TOKENS // ledger.page_size)
        self._num_fillers: Counter[int] = Counter()  # hash of a prefix -> running prefills with it
        self._hashes: dict[int, list[int]] = {}  # by run_id

    def add(self, req: Req) -> None:
        """Its prefill begins: its cached pages are known."""
        hashes = self._ledger.prefix_hashes(req)[req.num_cached_pages :]
        self._hashes[req.run_id] = hashes
        self._num_fillers.update(hashes)

    def discard(self, req: Req) -> None:
        """Its prefill is over, if it ran."""
        for prefix_hash in self._hashes.pop(req.run_id, ()):
            self._num_fillers[prefix_hash] -= 1
            if self._num_fillers[prefix_hash] == 0:
                del self._num_fillers[prefix_hash]

    def will_serve(self, req: Req) -> bool:
        """Whether a longer prefix than it finds now will soon be in the cache."""
        if not self._num_fillers or not req.reads_cache:
            return False
        hashes = self._ledger.prefix_hashes(req)
        idx = len(self._ledger.match(req).pages) + self._min_pages - 1
        # The last token is computed in any case: the page that it completes is no gain.
        return idx < (req.num_tokens - 1) // self._ledger.page_size and (
            hashes[idx] in self._num_fillers
        )
