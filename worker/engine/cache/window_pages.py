"""The pages of layers with a window: what the next token of a text sees, and some more."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from worker.engine.cache.page_allocator import PageAllocator
from worker.engine.cache.radix_node import NodeQueue, RadixNode

_STEPS = 4  # planned, in flight, and two whose pages are free when that one is done


def num_running_pages(window: int, page_size: int, max_running: int, max_step_tokens: int) -> int:
    """What requests that run hold at most: their windows, not cut at page borders, and the tokens
    of steps.
    """
    pages_of_row = -(-window // page_size) + 3
    return max_running * pages_of_row + _STEPS * -(-max_step_tokens // page_size)


@dataclass(slots=True)
class OwnWindow:
    """What a request that has a row holds of the pages of layers with a window."""

    first: int  # page of its text
    nodes: deque[RadixNode]  # of the cache, that page and those behind it
    borders: Collection[int]  # where others may go on, in pages


class WindowPages:
    """Pages [0, num_pages): each is free, a request's, or of a page of the radix cache.

    A page of the radix cache without one holds what is of use only behind the window's pages of a
    later border. Those that no request holds are taken for new ones when none is free: what a
    window has left behind first, then the least recently found, pinned ones after all others.
    """

    def __init__(self, num_pages: int, page_size: int, window: int) -> None:
        self.allocator = PageAllocator(num_pages)
        self.version = 0  # as long as it stays, the same pages of the cache have one
        self._page_size = page_size
        self._window = window
        self._unheld = NodeQueue()

    def tail(self, num_pages: int) -> range:
        """Those of so many pages of a text that the next token sees."""
        first_token = max(0, num_pages * self._page_size - self._window + 1)
        return range(first_token // self._page_size, num_pages)

    def num_usable(self, path: Sequence[RadixNode]) -> int:
        """How many pages of a path a text can go on behind: those before them are here."""
        border = len(path)
        while border:
            missing = (idx for idx in reversed(self.tail(border)) if path[idx].window_page is None)
            hole = next(missing, None)
            if hole is None:
                return border
            border = hole
        return 0

    def use(self, nodes: Iterable[RadixNode]) -> None:
        """They have been found."""
        for node in nodes:
            if node.num_window_holders == 0:
                self._unheld.push(node)

    def allocate(self, num_pages: int) -> list[int]:
        """Pages for a request; the content is undefined. There are enough that nobody holds."""
        while not self.allocator.can_allocate(num_pages):
            node = self._unheld.first()
            assert node is not None, f"requests hold all pages but {self.allocator.num_free}"
            self.forget(node)
        return self.allocator.allocate(num_pages)

    def put(self, node: RadixNode, page: int) -> None:
        """A request's becomes that of a page of the cache, which has none."""
        assert node.window_page is None
        node.window_page = page
        self.version += 1
        self._unheld.push(node)

    def hold(self, node: RadixNode) -> None:
        """Holds pages for a request whose next token sees it, until `let_go`."""
        assert node.window_page is not None
        if node.num_window_holders == 0:
            self._unheld.remove(node)
        node.num_window_holders += 1

    def let_go(self, node: RadixNode, *, is_wanted: bool) -> None:
        """Somebody may go on where it is seen, or that is not known."""
        node.num_window_holders -= 1
        if node.num_window_holders == 0:
            self._unheld.push(node, is_last=is_wanted)

    def forget(self, node: RadixNode) -> None:
        """Its page is free, if it has one that nobody holds."""
        if node.window_page is None:
            return
        self._unheld.remove(node)
        self.allocator.free([node.window_page])
        node.window_page = None
        self.version += 1

    def check_integrity(self, nodes: Collection[RadixNode], owned: Sequence[int]) -> None:
        """Checks it with all pages of the cache, and those that requests hold by themselves. Raises
        RuntimeError when one is lost or in two places.
        """
        cached = [node.window_page for node in nodes if node.window_page is not None]
        in_use = cached + list(owned)
        num_accounted = self.allocator.num_free + len(in_use)
        if num_accounted != self.allocator.num_pages:
            raise RuntimeError(f"{self.allocator.num_pages - num_accounted} window pages lost")
        if len(set(in_use)) != len(in_use) or any(map(self.allocator.is_free, in_use)):
            raise RuntimeError("a window page is in two places")
        unheld = [
            node for node in nodes if node.window_page is not None and not node.num_window_holders
        ]
        if len(unheld) != len(self._unheld) or not all(node in self._unheld for node in unheld):
            raise RuntimeError(f"{len(unheld)} window pages are unheld, {len(self._unheld)} queued")
