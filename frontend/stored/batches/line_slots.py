"""How many lines a frontend's batches have in the queue, shared out evenly among them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class LineSlots:
    """A batch whose lines wait for a worker or for a limit keeps its share, and nobody else's."""

    def __init__(self, max_in_flight: int) -> None:
        self._max = max_in_flight
        self._held: Counter[str] = Counter()
        self._sharers: set[str] = set()
        self._changed = asyncio.Condition()

    @property
    def share(self) -> int:
        return max(1, self._max // max(1, len(self._sharers)))

    @contextmanager
    def shared_with(self, batch_id: str) -> Iterator[None]:
        """While the batch has lines to run."""
        self._sharers.add(batch_id)
        try:
            yield
        finally:
            self._sharers.discard(batch_id)

    @asynccontextmanager
    async def slot(self, batch_id: str) -> AsyncIterator[None]:
        """Holds a slot for one line."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._held[batch_id] < self.share)
            self._held[batch_id] += 1
        try:
            yield
        finally:
            self._held[batch_id] -= 1
            if not self._held[batch_id]:
                del self._held[batch_id]
            async with self._changed:
                self._changed.notify_all()
