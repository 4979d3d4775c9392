"""Which pages go to a tier outside the pool, and which come back for whom."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from worker.engine.cache.radix_node import RadixNode, next_chain
from worker.engine.request.req import Req
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.tiers.kv_tier import (
    FetchCounts,
    KVTier,
    KVTransfer,
    PageContent,
    PageMemory,
    PageSource,
)
from worker.engine_link.engine_messages import (
    FETCH_REASONS,
    LOSS_REASONS,
    REJECT_REASONS,
    TierLoad,
)

MIN_TOKENS = 32  # fewer are computed as fast as they are waited for
MAX_WAIT_S = 1.0  # for pages, before anything has been computed
MAX_SHARE = 0.5  # of the pool, that is brought for requests which wait
COPY_BYTES = 8 << 20  # between two steps, of pages that are written before they must leave
_MAX_LOOKS = 1024  # at such pages, between two steps
_DEPTH_NS = 1000  # a page seems so much older than the one before it: of a path the end goes first


@dataclass(slots=True, eq=False)
class _Reading:
    """What is on its way from one source."""

    source: PageSource
    orders: deque[_Fetch] = field(default_factory=deque)  # whose page each order is
    is_stalled: bool = False  # until a page arrives

    @property
    def has_room(self) -> bool:
        return len(self.orders) < self.source.max_ordered


@dataclass(slots=True, eq=False)
class _Fetch:
    """What a request that waits has fetched: pages behind `node`, its last one in the pool."""

    reading: _Reading
    node: RadixNode
    keys: list[bytes]
    chains: list[bytes]
    num_taken: int = 0  # of them, that `node` is behind
    num_ordered: int = 0
    num_promised: int = 0  # pages of the pool
    begun_at_s: float = 0.0
    used_ns: int = 0
    is_begun: bool = False
    is_over: bool = False

    @property
    def num_left(self) -> int:
        return len(self.chains) - self.num_taken


class TierLedger:
    """The part of the books that is about pages outside the pool.

    Pages are written when a request that had them ends, or when they leave the pool, or (where it
    `writes_through`) when they are computed: each once, as long as the tier has it. They are copied
    between steps, and written by the tier's threads. What is found behind a request's prefix in the
    pool is read while it waits, unless computing it would be faster, by what both have taken
    lately; it joins a step when its pages are in the cache, or when computing them would have taken
    as long.
    """

    def __init__(
        self,
        tier: KVTier,
        memory: PageMemory,
        ledger: KVLedger,
        min_tokens: int = MIN_TOKENS,
        transfer: KVTransfer | None = None,
        *,
        writes_through: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert ledger.windows is None, "a page is all that the pool has of its tokens"
        assert not ledger.keeps_states
        self._tier = tier
        self._transfer = transfer
        self._memory = memory
        self._ledger = ledger
        self._clock = clock
        self._writes_through = writes_through
        self._min_pages = -(-min_tokens // ledger.page_size)
        self._token_s: float | None = None  # of computing one
        self._fetches: dict[int, _Fetch] = {}  # by run_id, of requests that wait
        self._open: list[_Fetch] = []  # of these, the ones that are read, in their order
        self._disk = _Reading(tier)
        self._peers: dict[PageSource, _Reading] = {}  # whose pages are on their way
        self._coming: set[bytes] = set()  # chains that open ones lack
        self._num_promised = 0
        self._offers: OrderedDict[RadixNode, int] = OrderedDict()  # to be written, used when
        self.num_queries = 0  # tokens that were not in the pool, looked up since start
        self.num_hits = 0  # of which came from the tier
        self.num_fetched = 0  # of which came from other workers
        self.num_slow = 0  # pages that were there, and faster computed

    @property
    def tier(self) -> KVTier:
        return self._tier

    @property
    def is_reading(self) -> bool:
        return bool(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether `serve` has something to do before long."""
        return bool(self._open or self._offers)

    def serve(self, waiting: Sequence[Req], token_s: float | None) -> None:
        """Between two steps. `waiting` may be next; a token is computed in `token_s`."""
        self._token_s = token_s
        for req in waiting:
            self.is_coming(req)
        self._take_arrived()
        self._order()
        self._write_offers()

    def is_coming(self, req: Req) -> bool:
        """Whether more of its prefix will soon be in the cache."""
        fetch = self._fetches.get(req.run_id)
        if fetch is None:
            fetch = self._fetches[req.run_id] = self._look_up(req)
        if fetch.is_over or fetch.is_begun:
            return not fetch.is_over
        return self._maybe_begin(fetch)

    def forget(self, req: Req) -> None:
        """It waits no more."""
        fetch = self._fetches.pop(req.run_id, None)
        if fetch is not None:
            self._end(fetch)
            self._num_promised -= fetch.num_promised

    def note_computed(self, req: Req) -> None:
        """More of its text is in the cache; it goes on."""
        if self._writes_through:
            self.keep(req.lock_node, self._clock() - req.arrived_at_s)

    def keep(self, last: RadixNode | None, age_s: float = 0.0) -> None:
        """Writes what the tier lacks of a path, from its beginning, when there is time. `age_s`:
        since its beginning was used, which is not to leave the tier before its end.
        """
        path = () if last is None else (*last.path_up(),)
        used_ns = time.time_ns() - int(age_s * 1e9)
        for depth, node in enumerate(reversed(path)):
            if node not in self._offers and not self._tier.is_known(node.chain):
                self._offers[node] = used_ns - depth * _DEPTH_NS

    def save(self, evicted: Sequence[RadixNode]) -> None:
        """Pages that leave the pool, whose memory is written to next."""
        now = time.time_ns()
        for node in evicted:
            self._offers.pop(node, None)
            self._maybe_put(node, now)

    def clear(self) -> None:
        """Forgets all pages outside the pool."""
        for fetch in list(self._open):
            self._end(fetch)
        self._offers.clear()
        self._tier.clear()

    def load(self) -> TierLoad:
        counts, num_page_bytes = self._tier.counts, self._memory.num_page_bytes
        fetched = FetchCounts() if self._transfer is None else self._transfer.fetched
        return TierLoad(
            self._tier.num_bytes,
            self.num_queries,
            self.num_hits,
            self.num_slow,
            counts.num_read * num_page_bytes,
            counts.num_written * num_page_bytes,
            tuple(counts.rejected[reason] for reason in REJECT_REASONS),
            tuple(counts.lost[reason] for reason in LOSS_REASONS),
            self.num_fetched,
            fetched.num_read * num_page_bytes,
            tuple(fetched.rejected[reason] for reason in FETCH_REASONS),
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when the books do not agree."""
        if self._num_promised != sum(each.num_promised for each in self._fetches.values()):
            raise RuntimeError(f"{self._num_promised} pages are promised, to nobody")
        for reading in self._readings:
            if len(reading.orders) > reading.source.max_ordered:
                raise RuntimeError(f"{len(reading.orders)} pages are ordered")
        coming = {chain for each in self._open for chain in each.chains[each.num_taken :]}
        if coming != self._coming or any(each.is_over for each in self._open):
            raise RuntimeError("pages are waited for that nobody reads")

    def _look_up(self, req: Req) -> _Fetch:
        match = self._ledger.match(req)
        keys = self._ledger.keys_behind(req, match) if req.reads_cache else []
        self.num_queries += len(keys) * self._ledger.page_size
        has = self._tier.find if req.options.seeks_pages else self._tier.has
        chains, num_here = [match.node.chain], 0
        for key in keys:
            chains.append(next_chain(chains[-1], key))
            if num_here == len(chains) - 2 and has(chains[-1]):
                num_here += 1
        reading = self._disk
        if num_here < len(keys) and (peer := self._peer(req)) is not None:
            reading, num_here = peer, len(keys)
        return _Fetch(reading, match.node, keys[:num_here], chains[1 : num_here + 1])

    def _peer(self, req: Req) -> _Reading | None:
        """The worker that has its pages, as somebody said: which of them, it is asked."""
        if req.options.peer is None or self._transfer is None:
            return None
        source = self._transfer.source(req.options.peer)
        if source is not None and source not in self._peers:
            wanted = {fetch.reading for fetch in self._fetches.values()}
            self._peers = {
                each: reading
                for each, reading in self._peers.items()
                if reading.orders or reading in wanted
            } | {source: _Reading(source)}
        return None if source is None else self._peers[source]

    def _maybe_begin(self, fetch: _Fetch) -> bool:
        """Whether what it lacks is read, maybe for another."""
        self._skip_present(fetch)
        if fetch.num_left < self._min_pages or not self._ledger.cache.has(fetch.node):
            fetch.is_over = True
            return False
        if not self._coming.isdisjoint(fetch.chains[fetch.num_taken :]):
            return True
        if not self._is_worth_reading(fetch):
            self.num_slow += fetch.num_left
            fetch.is_over = True
            return False
        num_allowed = int(self._ledger.num_pages * MAX_SHARE)
        if self._num_promised and self._num_promised + fetch.num_left > num_allowed:
            return False
        fetch.is_begun = True
        fetch.begun_at_s, fetch.used_ns = self._clock(), time.time_ns()
        fetch.num_ordered = fetch.num_taken
        fetch.num_promised = fetch.num_left
        self._num_promised += fetch.num_left
        self._open.append(fetch)
        self._coming.update(fetch.chains[fetch.num_taken :])
        return True

    def _skip_present(self, fetch: _Fetch) -> None:
        """What others have brought, or computed."""
        while fetch.num_left:
            child = fetch.node.children.get(fetch.keys[fetch.num_taken])
            if child is None:
                return
            fetch.node = child
            fetch.num_taken += 1

    def _is_worth_reading(self, fetch: _Fetch) -> bool:
        reading = fetch.reading
        if reading.is_stalled:
            return False
        num_pages = fetch.num_left + sum(
            each.num_left for each in self._open if each.reading is reading
        )
        read_s = (reading.source.read_s or 0.0) * num_pages
        return read_s <= self._computing_s(fetch.num_left)

    def _computing_s(self, num_pages: int) -> float:
        if self._token_s is None:
            return MAX_WAIT_S
        return self._token_s * self._ledger.page_size * num_pages

    @property
    def _readings(self) -> Sequence[_Reading]:
        return (self._disk, *self._peers.values())

    def _take_arrived(self) -> None:
        for reading in self._readings:
            arrived = reading.source.take_arrived()
            for content in arrived:
                reading.is_stalled = False
                fetch = reading.orders.popleft()
                if not fetch.is_over and (content is None or not self._bring(fetch, content)):
                    self._end(fetch)
            if not arrived:
                self._end_late(reading)

    def _end_late(self, reading: _Reading) -> None:
        """Those that would have been computed by now."""
        now = self._clock()
        for fetch in [each for each in self._open if each.reading is reading]:
            if now - fetch.begun_at_s > self._computing_s(fetch.num_promised):
                reading.is_stalled = True
                self.num_slow += fetch.num_left
                self._end(fetch)

    def _bring(self, fetch: _Fetch, content: PageContent) -> bool:
        """Into the pool, where others find it as well."""
        key, ledger = fetch.keys[fetch.num_taken], self._ledger
        if not ledger.cache.has(fetch.node):
            return False
        child = fetch.node.children.get(key)
        if child is None:
            child = ledger.adopt(fetch.node, key)
            self.save(ledger.take_evicted())
            if child is None:
                return False
            self._memory.write_page(child.page, content)
            self.num_hits += ledger.page_size
            self.num_fetched += ledger.page_size * (fetch.reading is not self._disk)
        self._coming.discard(fetch.chains[fetch.num_taken])
        fetch.node = child
        fetch.num_taken += 1
        if not fetch.num_left:
            self._end(fetch)
        return True

    def _end(self, fetch: _Fetch) -> None:
        """What it lacks is computed."""
        if fetch in self._open:
            self._open.remove(fetch)
            self._coming.difference_update(fetch.chains[fetch.num_taken :])
        fetch.is_over = True

    def _order(self) -> None:
        for fetch in self._open:
            reading = fetch.reading
            while fetch.num_ordered < len(fetch.chains) and reading.has_room:
                used_ns = fetch.used_ns - fetch.num_ordered * _DEPTH_NS
                reading.source.order(fetch.chains[fetch.num_ordered], used_ns)
                reading.orders.append(fetch)
                fetch.num_ordered += 1

    def _write_offers(self) -> None:
        num_left = max(1, COPY_BYTES // self._memory.num_page_bytes)
        for _ in range(min(_MAX_LOOKS, len(self._offers))):
            if not num_left or not self._tier.has_room:
                return
            node, used_ns = self._offers.popitem(last=False)
            if self._ledger.cache.has(node):
                num_left -= self._maybe_put(node, used_ns)

    def _maybe_put(self, node: RadixNode, used_ns: int) -> bool:
        """Unless the tier has it, or has no time for it."""
        tier, lost = self._tier, self._tier.counts.lost
        if tier.is_known(node.chain):
            return False
        if tier.write_s is not None and tier.write_s > self._computing_s(1):
            lost["slow"] += 1
        elif not tier.has_room:
            lost["busy"] += 1
        else:
            content = np.empty(self._memory.num_page_bytes, np.uint8)
            self._memory.read_page(node.page, content)
            tier.put(node.chain, content, used_ns)
            return True
        return False
