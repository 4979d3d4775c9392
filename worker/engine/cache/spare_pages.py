"""Pages that nobody holds any more, and that steps in flight may use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from worker.engine.cache.page_allocator import PageAllocator


class SparePages:
    """They are free when all steps are done that were in flight when they were put here."""

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self._num_done = 0  # steps
        self._num_in_flight = 0  # behind these
        self._pages: deque[tuple[int, int]] = deque()  # the step that frees each, and the page

    def __iter__(self) -> Iterator[int]:
        return (page for _, page in self._pages)

    def put(self, pages: Iterable[int]) -> None:
        last = self._num_done + self._num_in_flight
        self._pages += [(last, page) for page in pages]

    def on_step(self, num_in_flight: int) -> None:
        """One more is done, behind which so many are in flight."""
        self._num_done += 1
        self._num_in_flight = num_in_flight
        done = []
        while self._pages and self._pages[0][0] <= self._num_done:
            done.append(self._pages.popleft()[1])
        self._allocator.free(done)
