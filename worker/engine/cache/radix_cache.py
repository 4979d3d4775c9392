"""Prefixes whose keys and values are already computed: a tree of pages."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from worker.engine.cache.radix_node import PinRegistry, RadixNode
from worker.engine.cache.state_snapshots import StateSnapshots
from worker.engine.cache.window_pages import WindowPages

_SLACK = 64


class MatchResult(NamedTuple):
    """The longest cached prefix: its last node and its pages. Not locked yet.

    Where states are kept beside pages it ends with a page that has one; where layers with a window
    have pages of their own, with such that have them. `num_known` pages are cached in all.
    """

    node: RadixNode
    pages: list[int]
    num_known: int


class ExtendResult(NamedTuple):
    """Where a lock has moved to, which pages the path has, and which of the caller's are spare."""

    node: RadixNode
    pages: list[int]  # of the path, one for each key: the cache's own
    duplicates: list[int]  # pages given to us that the cache already had: the caller frees them


class RadixCache:
    """Computed pages, by the tokens that lead to them.

    A node is held when a lock ends in it or below it. The others, all of their subtrees included,
    may be evicted, leaves first, the least recently used first; those that are pinned after all
    others. A page enters the tree only by a holder's `extend_lock`, and leaves it only by `evict`.
    """

    def __init__(
        self,
        page_size: int,
        max_pinned_pages: int = 0,
        snapshots: StateSnapshots | None = None,  # None: pages alone tell how a text goes on
        windows: WindowPages | None = None,  # None: a page has what all layers keep
    ) -> None:
        self.page_size = page_size
        self.snapshots = snapshots
        self.windows = windows
        self.num_cached_pages = 0
        self.num_evictable_pages = 0
        self._num_changes = 0  # pages that came or went
        self.root = RadixNode(None, b"", -1, 0)
        self._clock = 0  # logical, so that every rank of a tensor-parallel group agrees
        # Unheld leaves; also some that are none any more, or have another rank: seen when popped.
        self._heap: list[tuple[tuple[bool, int], RadixNode]] = []
        self._pins = PinRegistry(max_pinned_pages)

    @property
    def version(self) -> int:
        """As long as it stays, so do all matches."""
        others = (self.snapshots, self.windows)
        return self._num_changes + sum(each.version for each in others if each is not None)

    def match(self, keys: Sequence[bytes]) -> MatchResult:
        """The longest prefix of `keys` in the tree; counts as a use of it."""
        self._clock += 1
        node = self.root
        path: list[RadixNode] = []
        for key in keys:
            child = node.children.get(key)
            if child is None:
                break
            child.last_access = self._clock
            path.append(child)
            node = child
        num_known = len(path)
        del path[self._num_usable(path) :]
        node = path[-1] if path else self.root
        return MatchResult(node, [each.page for each in path], num_known)

    def _num_usable(self, path: list[RadixNode]) -> int:
        """How many pages of it a text can go on behind."""
        num_usable = len(path)
        if self.snapshots is not None:
            while num_usable and path[num_usable - 1].snapshot is None:
                num_usable -= 1
            if num_usable:
                self.snapshots.use(path[num_usable - 1])
        if self.windows is not None:
            num_usable = self.windows.num_usable(path)
            self.windows.use(path[idx] for idx in self.windows.tail(num_usable))
        return num_usable

    def num_unheld(self, node: RadixNode) -> int:
        """How many pages a lock on the node would take from the evictable ones."""
        num_pages = 0
        while node.parent is not None and node.num_holders == 0:
            num_pages += 1
            node = node.parent
        return num_pages

    def lock(self, node: RadixNode) -> None:
        """Keeps the node and its ancestors until `unlock`."""
        while node.parent is not None:
            node.num_holders += 1
            if node.num_holders > 1:
                return
            self.num_evictable_pages -= 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        while node.parent is not None:
            assert node.num_holders > 0, "unlocked more often than locked"
            node.num_holders -= 1
            if node.num_holders:
                return
            self.num_evictable_pages += 1
            self._maybe_queue(node)
            node = node.parent

    def extend_lock(
        self, node: RadixNode, keys: Sequence[bytes], pages: Sequence[int]
    ) -> ExtendResult:
        """Inserts pages after a locked node, and moves the lock to the last of them.

        The pages become the cache's, but for the duplicates.
        """
        self._clock += 1
        last = node
        path: list[int] = []
        duplicates: list[int] = []
        for key, page in zip(keys, pages, strict=True):
            child = last.children.get(key)
            if child is None:
                child = self._add_child(last, key, page)
            else:
                child.last_access = self._clock
                duplicates.append(page)
            path.append(child.page)
            last = child
        self.lock(last)
        self.unlock(node)
        return ExtendResult(last, path, duplicates)

    def has(self, node: RadixNode) -> bool:
        """Whether it has not been evicted."""
        return node.parent is None or node.parent.children.get(node.key) is node

    def evict(self, num_pages: int) -> list[int]:
        """Takes up to `num_pages` pages out of the tree, and gives them to the caller."""
        return [node.page for node in self.evict_nodes(num_pages)]

    def evict_nodes(self, num_pages: int) -> list[RadixNode]:
        """The same, with the ways to them."""
        evicted: list[RadixNode] = []
        while len(evicted) < num_pages and self._heap:
            rank, node = heapq.heappop(self._heap)
            if rank != node.queued_rank:  # it has another entry
                continue
            node.queued_rank = None
            if node.children or node.num_holders:
                continue
            if rank != node.eviction_rank:  # used or pinned since: back, at its true place
                self._maybe_queue(node)
                continue
            self._remove_leaf(node)
            evicted.append(node)
        return evicted

    @property
    def num_pinned_pages(self) -> int:
        return len(self._pins)

    def pin(self, node: RadixNode, num_pages: int, until: float) -> None:
        """The first pages of the way to a node, so that they are evicted after all others.

        Pins are not locks: where nothing else is left, they go as well.
        """
        path = list(node.path_up())
        num_pinned = min(num_pages, self._pins.max_pins)
        # The deepest first: it is the first to give way.
        self._requeue(self._pins.pin(path[max(0, len(path) - num_pinned) :], until))

    def end_pins(self, now: float) -> None:
        """Ends the pins whose time is over."""
        self._requeue(self._pins.take_expired(now))

    def nodes(self) -> Iterator[RadixNode]:
        """All but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Raises RuntimeError when the counts do not agree with the tree."""
        nodes = list(self.nodes())
        num_evictable = sum(node.num_holders == 0 for node in nodes)
        if (len(nodes), num_evictable) != (self.num_cached_pages, self.num_evictable_pages):
            raise RuntimeError(
                f"the tree has {len(nodes)} pages, {num_evictable} of them unheld; "
                f"counted {self.num_cached_pages} and {self.num_evictable_pages}"
            )
        for node in nodes:
            num_held = sum(child.num_holders > 0 for child in node.children.values())
            if node.num_holders < num_held:
                raise RuntimeError(f"page {node.page} is not held, but {num_held} below it are")
            if node.children or node.num_holders:
                continue
            if node.queued_rank is None or node.queued_rank[0] > node.eviction_rank[0]:
                raise RuntimeError(f"page {node.page} is not evicted at its time")
        pinned = [node for node in nodes if node.pinned_until > 0]
        if len(pinned) != len(self._pins) or not all(node in self._pins for node in pinned):
            raise RuntimeError(f"{len(pinned)} pages are pinned, {len(self._pins)} in the book")
        self._pins.check_integrity()

    def _add_child(self, parent: RadixNode, key: bytes, page: int) -> RadixNode:
        child = RadixNode(parent, key, page, self._clock)
        parent.children[key] = child
        self._num_changes += 1
        self.num_cached_pages += 1
        self.num_evictable_pages += 1
        return child

    def _remove_leaf(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        self._num_changes += 1
        self.num_cached_pages -= 1
        self.num_evictable_pages -= 1
        self._pins.forget(node)
        if self.snapshots is not None:
            self.snapshots.forget(node)
        if self.windows is not None:
            self.windows.forget(node)
        self._maybe_queue(parent)

    def _maybe_queue(self, node: RadixNode) -> None:
        if node.children or node.num_holders or node.queued_rank or node.parent is None:
            return
        self._queue(node)

    def _requeue(self, nodes: Iterable[RadixNode]) -> None:
        """They are pinned no more: those that wait to be evicted do so among the others now."""
        for node in nodes:
            if node.queued_rank is not None and node.queued_rank != node.eviction_rank:
                self._queue(node)

    def _queue(self, node: RadixNode) -> None:
        node.queued_rank = node.eviction_rank
        heapq.heappush(self._heap, (node.queued_rank, node))
        if len(self._heap) > 2 * self.num_cached_pages + _SLACK:  # entries that count no more
            queued = {node for rank, node in self._heap if rank == node.queued_rank}
            self._heap = [(each.eviction_rank, each) for each in queued]
            for rank, each in self._heap:
                each.queued_rank = rank
            heapq.heapify(self._heap)
