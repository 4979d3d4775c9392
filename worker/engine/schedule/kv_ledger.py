"""The books of the KV pool: which request, cache or free list holds each page."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from shared.protocol.request import KeepPrefix
from worker.engine.cache.page_allocator import PageAllocator
from worker.engine.cache.radix_cache import MatchResult, RadixCache
from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.req_to_token_pool import PageTables, ReqToTokenPool
from worker.engine.cache.spare_pages import SparePages
from worker.engine.cache.state_snapshots import StateSnapshots
from worker.engine.cache.window_pages import WindowPages
from worker.engine.request.req import Req
from worker.engine.request.req_embeds import ReqEmbeds
from worker.engine.request.schedule_batch import NO_COPIES, ScheduledReq, StateCopies
from worker.engine.schedule.snapshot_planner import SnapshotPlanner
from worker.engine.schedule.window_ledger import WindowLedger

TOKEN_BYTES = 4


class KVLedger:
    """Gives rows and pages to requests, and takes them back.

    Every page is in exactly one place: free, in the cache, or a request's own. New pages come from
    the free list, then from the cache by eviction.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_rows: int,
        max_context_len: int,
        max_pinned_share: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        snapshots: StateSnapshots | None = None,
        windows: WindowPages | None = None,
    ) -> None:
        """`snapshots`: of a model for which pages alone do not tell how a text goes on. Without a
        slot for one no page outlives its request. `windows`: pages of layers with a window, which
        have no part in others.
        """
        assert snapshots is None or windows is None
        self.keeps_states = snapshots is not None
        self.has_prefixes = snapshots is None or snapshots.num_slots > 0
        self.snapshots = snapshots if self.has_prefixes else None
        self.planner = (
            None if self.snapshots is None else SnapshotPlanner(self.snapshots, page_size)
        )
        self.page_size = page_size
        self.num_pages = num_pages
        self.allocator = PageAllocator(num_pages)
        num_pins = int(num_pages * max_pinned_share)
        self.cache = RadixCache(page_size, num_pins, self.snapshots, windows)
        self._clock = clock
        max_pages = min(num_pages, self._num_pages_for(max_context_len))
        self.req_to_token = ReqToTokenPool(num_rows, max_pages, self.allocator.padding_page)
        self.windows = (
            None if windows is None else WindowLedger(windows, page_size, num_rows, max_pages)
        )
        self.num_prefix_queries = 0  # prompt tokens looked up, since start
        self.num_prefix_hits = 0  # of which were found
        self._fresh_pages: list[int] = []  # handed out since `take_fresh_pages`
        self._evicted: list[RadixNode] = []  # for pages of others, since `take_evicted`
        self._spares = SparePages(self.allocator)

    @property
    def page_tables(self) -> PageTables:
        windows = self.windows
        return PageTables(self.req_to_token, None if windows is None else windows.req_to_token)

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def num_available_pages(self) -> int:
        return self.allocator.num_free + self.cache.num_evictable_pages

    @property
    def num_free_rows(self) -> int:
        return self.req_to_token.num_free_rows

    @property
    def num_used_rows(self) -> int:
        return self.req_to_token.num_rows - self.req_to_token.num_free_rows

    def num_pages_short(self, req: Req, num_tokens: int) -> int:
        """Pages that it lacks to hold its first `num_tokens` tokens."""
        return max(0, self._num_pages_for(num_tokens) - req.num_pages)

    def num_tokens_in_reach(self, req: Req) -> int:
        """How many of its tokens could be held, with all available pages."""
        return (req.num_pages + self.num_available_pages) * self.page_size

    def match(self, req: Req) -> MatchResult:
        """Its cached prefix: nothing, where the logits or hidden states of all tokens are wanted.

        One token at least is left to compute: somebody needs its logits.
        Looked up, and thereby used, again only when the cache has changed.
        """
        if req.last_match is None or req.last_match[0] != self.cache.version:
            num_tokens = req.num_tokens - 1 if req.reads_cache and self.has_prefixes else 0
            keys = self._keys(req, 0, num_tokens // self.page_size)
            req.last_match = self.cache.version, self.cache.match(keys)
        return req.last_match[1]

    def keys_behind(self, req: Req, match: MatchResult) -> list[bytes]:
        """The keys of the pages that it could find, and has not."""
        num_pages = (req.num_tokens - 1) // self.page_size
        return self._keys(req, len(match.pages), num_pages)

    def num_available_beside(self, match: MatchResult) -> int:
        """Pages that are available when the matched ones are held."""
        return self.num_available_pages - self.cache.num_unheld(match.node)

    def prefix_hashes(self, req: Req) -> list[int]:
        """Hashes of its namespace and tokens up to the end of each full page."""
        keys = self._keys(req, 0, req.num_tokens // self.page_size)
        hashes = req.prefix_hashes
        for key in keys[len(hashes) :]:
            hashes.append(hash((hashes[-1] if hashes else 0, key)))
        return hashes

    def attach(self, req: Req, match: MatchResult) -> None:
        """Gives it a row and its cached prefix."""
        assert req.row < 0
        self.cache.lock(match.node)
        req.row = self.req_to_token.allocate()
        req.last_match = None
        req.lock_node = match.node
        req.num_pages = req.num_cached_pages = len(match.pages)
        req.num_computed = req.num_slots = len(match.pages) * self.page_size
        self.req_to_token.write_pages(req.row, 0, match.pages)
        if self.planner is not None:
            self.planner.begin(req, match)
        if self.windows is not None:
            self.windows.begin(req, match)
        if req.num_cached_tokens is None:
            req.num_cached_tokens = min(req.num_computed, req.num_prompt_tokens)
            self.num_prefix_queries += req.num_prompt_tokens
            self.num_prefix_hits += req.num_cached_tokens

    def extend(self, req: Req, num_tokens: int) -> None:
        """Pages for its first `num_tokens` tokens: they must be available."""
        if num_tokens <= req.num_slots:
            return
        num_short = self.num_pages_short(req, num_tokens)
        if self.windows is not None:
            self.cache.end_pins(self._clock())
        pages = self._allocate(num_short)
        self.req_to_token.write_pages(req.row, req.num_pages, pages)
        if self.windows is not None:
            self.windows.extend(req, req.num_pages, num_short)
        req.num_pages += num_short
        req.num_slots = req.num_pages * self.page_size
        self._fresh_pages += pages

    def _allocate(self, num_pages: int) -> list[int]:
        num_missing = num_pages - self.allocator.num_free
        if num_missing > 0:
            self.cache.end_pins(self._clock())
            evicted = self.cache.evict_nodes(num_missing)
            self._evicted += evicted
            self.allocator.free(node.page for node in evicted)
        return self.allocator.allocate(num_pages)

    def take_evicted(self) -> list[RadixNode]:
        """Those that have left the cache since the last call, for pages of others: until the next
        step is launched their pages hold what they held.
        """
        evicted, self._evicted = self._evicted, []
        return evicted

    def adopt(self, parent: RadixNode, key: bytes) -> RadixNode | None:
        """A page of the cache behind another, whose content comes from elsewhere, and is to be
        there before anybody plans a step. None: there is no room for it.
        """
        self.cache.lock(parent)
        pages = self._allocate(1) if self.num_available_pages else []
        if not pages:
            self.cache.unlock(parent)
            return None
        node = self.cache.extend_lock(parent, [key], pages).node
        self.cache.unlock(node)
        return node

    def take_fresh_pages(self) -> tuple[list[int], list[int]]:
        """Pages handed out since the last call, and those of layers with a window: what they hold
        must be wiped.
        """
        pages, self._fresh_pages = self._fresh_pages, []
        return pages, [] if self.windows is None else self.windows.take_fresh_pages()

    def plan_copies(self, entries: Sequence[ScheduledReq]) -> StateCopies:
        """The copies of recurrent states, in a step with these: asked once, when it is launched."""
        return NO_COPIES if self.planner is None else self.planner.plan(entries)

    def commit(self, req: Req) -> None:
        """Puts its full computed pages into the cache, where others find them, and gives up those
        that no window has any more.
        """
        if self.has_prefixes:
            self._cache_pages(req)
        if self.windows is not None:
            self.windows.slide(req)

    def _cache_pages(self, req: Req) -> None:
        start, end = req.num_cached_pages, req.num_computed // self.page_size
        if start >= end:
            return
        assert req.lock_node is not None
        own_pages = self.req_to_token.read_pages(req.row, start, end)
        result = self.cache.extend_lock(req.lock_node, self._keys(req, start, end), own_pages)
        # Where another request was first, the cache's page replaces ours: the same tokens.
        self.req_to_token.write_pages(req.row, start, result.pages)
        if req.num_in_flight:  # with a page table that has them
            self._spares.put(result.duplicates)
        else:
            self.allocator.free(result.duplicates)
        req.lock_node = result.node
        req.num_cached_pages = end
        if self.planner is not None:
            self.planner.put(req)
        if self.windows is not None:
            self.windows.put(req, start)

    def free_spares(self, num_in_flight: int) -> None:
        """A step is done, and is to be booked; behind it so many are in flight."""
        self._spares.on_step(num_in_flight)
        if self.windows is not None:
            self.windows.spares.on_step(num_in_flight)

    def release(self, req: Req, *, keep: bool = True) -> RadixNode | None:
        """Takes back all that it holds; with `keep` its computed pages stay in the cache. Returns
        the last one that the cache has of it, if it held any.

        Pages of the request, by index in its row:
          [0, num_cached_pages)          the cache's: unlock
          [num_cached_pages, num_pages)  its own, partly filled or not worth keeping: free
        """
        if req.row < 0:
            return None
        assert req.num_in_flight == 0, "a step in flight uses its pages"
        if keep:
            self.commit(req)
        assert req.lock_node is not None
        own_pages = self.req_to_token.read_pages(req.row, req.num_cached_pages, req.num_pages)
        self.allocator.free(own_pages)
        if self.planner is not None:
            self.planner.end(req, keep=keep)
        if self.windows is not None:
            self.windows.end(req)
        if keep and req.options.keep is not None:
            self._pin(req, req.lock_node, req.options.keep)
        last = req.lock_node
        self.cache.unlock(last)
        self.req_to_token.free(req.row)
        req.row = -1
        req.lock_node = None
        req.num_pages = req.num_cached_pages = req.num_computed = req.num_slots = 0
        return last

    def num_pinned_tokens(self) -> int:
        """That are kept from eviction now."""
        self.cache.end_pins(self._clock())
        return self.cache.num_pinned_pages * self.page_size

    def _pin(self, req: Req, last: RadixNode, keep: KeepPrefix) -> None:
        """Pins the first full pages of its prompt, as far as they have been computed."""
        num_tokens = min(keep.num_tokens or req.num_prompt_tokens, req.num_prompt_tokens)
        num_pages = min(num_tokens // self.page_size, req.num_cached_pages)
        now = self._clock()
        self.cache.end_pins(now)
        self.cache.pin(last, num_pages, now + keep.seconds)

    def flush(self) -> None:
        """Empties the cache, but for what running requests hold."""
        self.allocator.free(self.cache.evict(self.cache.num_evictable_pages))

    def check_integrity(self, running: Collection[Req]) -> None:
        """Raises RuntimeError when a page, a row or a lock is lost or in two places."""
        self.cache.check_integrity()
        if self.planner is not None:
            self.planner.check_integrity(list(self.cache.nodes()), running)
        if self.windows is not None:
            self.windows.check_integrity(list(self.cache.nodes()), running)
        num_rows = self.num_free_rows + len(running)
        if num_rows != self.req_to_token.num_rows:
            raise RuntimeError(f"{self.req_to_token.num_rows - num_rows} rows lost")
        cached = [node.page for node in self.cache.nodes()]
        owned = [page for req in running for page in self._own_pages(req)]
        in_use = [*cached, *owned, *self._spares]
        num_accounted = self.allocator.num_free + len(in_use)
        if num_accounted != self.num_pages:
            raise RuntimeError(f"{self.num_pages - num_accounted} pages lost")
        if len(set(in_use)) != len(in_use) or any(map(self.allocator.is_free, in_use)):
            raise RuntimeError("a page is in two places")
        for req in running:
            self._check_path(req)
        num_locks = sum(req.num_cached_pages > 0 for req in running)
        if num_locks == 0 and self.cache.num_evictable_pages != self.cache.num_cached_pages:
            raise RuntimeError("pages of the cache are held by nobody")

    def _check_path(self, req: Req) -> None:
        pages = self.req_to_token.read_pages(req.row, 0, req.num_cached_pages)
        node = req.lock_node
        while node is not None and node.parent is not None:
            if not pages or pages.pop() != node.page or node.num_holders < 1:
                raise RuntimeError(f"run {req.run_id} has lost its prefix")
            node = node.parent
        if pages:
            raise RuntimeError(f"run {req.run_id} has a prefix that it does not hold")

    def _own_pages(self, req: Req) -> list[int]:
        return self.req_to_token.read_pages(req.row, req.num_cached_pages, req.num_pages)

    def _num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _keys(self, req: Req, start_page: int, end_page: int) -> list[bytes]:
        keys = req.page_keys
        if len(keys) < end_page:
            size = self.page_size
            data = req.token_ids[len(keys) * size : end_page * size].tobytes()
            step = size * TOKEN_BYTES
            num_keys = len(keys)
            keys += [data[at : at + step] for at in range(0, len(data), step)]
            self._mark_namespaces(req, num_keys)
            if req.images:
                self._mark_images(req, num_keys)
            if req.embeds is not None:
                self._mark_embeds(req, req.embeds, num_keys)
        return keys[start_page:end_page]

    def _mark_namespaces(self, req: Req, first_page: int) -> None:
        """Lets no path of one namespace begin, or go on behind a public prefix, like one of
        another. A page that is only in part declared text is the request's own.
        """
        keys, public = req.page_keys, req.options.public
        num_public = 0 if public is None else public.num_tokens // self.page_size
        if first_page == 0 and public is not None and num_public:
            keys[0] = public.namespace + keys[0]
        if first_page <= num_public < len(keys):
            keys[num_public] = req.options.namespace + keys[num_public]

    def _mark_images(self, req: Req, first_page: int) -> None:
        """Tells pages of images apart: the placeholders of all images are the same."""
        keys, size = req.page_keys, self.page_size
        for image in req.images:
            last_page = (image.end - 1) // size
            for page in range(max(first_page, image.start // size), min(len(keys), last_page + 1)):
                keys[page] += image.page_mark

    def _mark_embeds(self, req: Req, embeds: ReqEmbeds, first_page: int) -> None:
        """Tells pages of embeddings apart: the tokens in their place are the same."""
        keys = req.page_keys
        end_page = min(len(keys), self._num_pages_for(embeds.num_rows))
        for page in range(first_page, end_page):
            keys[page] += embeds.page_mark(page, self.page_size)
