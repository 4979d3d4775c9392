"""Gives requests pages of layers with a window, and takes back what their next token sees not."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice

from worker.engine.cache.radix_cache import MatchResult
from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.cache.spare_pages import SparePages
from worker.engine.cache.window_pages import OwnWindow, WindowPages
from worker.engine.request.req import Req
from worker.engine.schedule.snapshot_planner import borders_of


class WindowLedger:
    """The part of the books that is about layers with a window.

    A request holds, from its first page that is seen behind the last full page of what is computed,
    the pages of the cache, and behind these its own. So whoever goes on behind that page finds all
    that it sees. There are as many pages as requests can hold (`num_running_pages`): nobody waits.

    A page that a step in flight sees is given to nobody. One that it reads behind a mask may be:
    whoever gets it writes in a later step.
    """

    def __init__(self, pages: WindowPages, page_size: int, num_rows: int, max_pages: int) -> None:
        self.pages = pages
        self._page_size = page_size
        # Its rows are those of the ledger; entries before and behind what a row holds are padding
        self.req_to_token = ReqToTokenPool(num_rows, max_pages, pages.allocator.padding_page)
        self._fresh_pages: list[int] = []
        self.spares = SparePages(pages.allocator)

    def begin(self, req: Req, match: MatchResult) -> None:
        """It has a row, and goes on behind what was found."""
        row = self.req_to_token.allocate()
        assert row == req.row, "rows come and go in one order"
        tail = self.pages.tail(len(match.pages))
        nodes = _last_nodes(match.node, len(tail))
        for node in nodes:
            self.pages.hold(node)
        self.req_to_token.write_pages(row, tail.start, [_page(node) for node in nodes])
        req.window_pages = OwnWindow(tail.start, nodes, borders_of(req, match, self._page_size))

    def extend(self, req: Req, start_page: int, num_pages: int) -> None:
        self.slide(req)
        pages = self.pages.allocate(num_pages)
        self.req_to_token.write_pages(req.row, start_page, pages)
        self._fresh_pages += pages

    def slide(self, req: Req) -> None:
        """Gives up what was seen behind what was computed before."""
        own, pages = _own(req), self.pages
        first, end = own.first, pages.tail(req.num_computed // self._page_size).start
        if end <= first:
            return
        for idx in range(first, min(end, req.num_cached_pages)):
            is_wanted = any(idx in pages.tail(border) for border in own.borders)
            pages.let_go(own.nodes.popleft(), is_wanted=is_wanted)
        own_first = max(first, req.num_cached_pages)
        pages.allocator.free(self.req_to_token.read_pages(req.row, own_first, end))
        padding = [self.req_to_token.padding_page] * (end - first)
        self.req_to_token.write_pages(req.row, first, padding)
        own.first = end

    def put(self, req: Req, start_page: int) -> None:
        """Its pages from there on are the cache's now, up to `req.num_cached_pages`."""
        own, pages = _own(req), self.pages
        assert req.lock_node is not None
        start = max(start_page, own.first)
        nodes = _last_nodes(req.lock_node, req.num_cached_pages - start)
        own_pages = self.req_to_token.read_pages(req.row, start, req.num_cached_pages)
        for node, page in zip(nodes, own_pages, strict=True):
            if node.window_page is None:
                pages.put(node, page)
            elif req.num_in_flight:  # with a page table that has it
                self.spares.put([page])
            else:
                pages.allocator.free([page])
            pages.hold(node)
        self.req_to_token.write_pages(req.row, start, [_page(node) for node in nodes])
        own.nodes += nodes

    def end(self, req: Req) -> None:
        """It gives its row back: what it has put into the cache stays there."""
        own = _own(req)
        for node in own.nodes:
            self.pages.let_go(node, is_wanted=True)
        self.pages.allocator.free(self._own_pages(req))
        self.req_to_token.free(req.row)
        req.window_pages = None

    def take_fresh_pages(self) -> list[int]:
        pages, self._fresh_pages = self._fresh_pages, []
        return pages

    def check_integrity(self, cached: Collection[RadixNode], running: Collection[Req]) -> None:
        """Raises RuntimeError when a page is lost, in two places, or held by nobody."""
        owned = [page for req in running for page in self._own_pages(req)]
        self.pages.check_integrity(cached, [*owned, *self.spares])
        for req in running:
            own = _own(req)
            assert req.lock_node is not None
            nodes = _last_nodes(req.lock_node, len(own.nodes))
            end = own.first + len(nodes)
            if nodes != own.nodes or end != max(own.first, req.num_cached_pages):
                raise RuntimeError(f"run {req.run_id} has lost its window")
            if self.req_to_token.read_pages(req.row, own.first, end) != list(map(_page, nodes)):
                raise RuntimeError(f"run {req.run_id} has the window of another")
        num_held = sum(node.num_window_holders for node in cached)
        if num_held != sum(len(_own(req).nodes) for req in running):
            raise RuntimeError("window pages of the cache are held by nobody")

    def _own_pages(self, req: Req) -> list[int]:
        start = max(_own(req).first, req.num_cached_pages)
        return self.req_to_token.read_pages(req.row, start, req.num_pages)


def _own(req: Req) -> OwnWindow:
    assert req.window_pages is not None, "it has a row"
    return req.window_pages


def _page(node: RadixNode) -> int:
    assert node.window_page is not None
    return node.window_page


def _last_nodes(node: RadixNode, num_nodes: int) -> deque[RadixNode]:
    """The last nodes of the way to a node, which is the last."""
    nodes: deque[RadixNode] = deque()
    for each in islice(node.path_up(), num_nodes):
        nodes.appendleft(each)
    assert len(nodes) == num_nodes
    return nodes
