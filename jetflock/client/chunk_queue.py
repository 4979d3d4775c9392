"""Chunks on their way from the client's thread to who reads them, in any thread or loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Future

from jetflock.client.result import Chunk


class ChunkQueue:
    """Each chunk is handed out once, in order; after the last one comes the error, if there is one.

    What waits here is never dropped, so that a slow reader costs memory and nothing else.
    """

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._lock = threading.Lock()
        self._readers: list[Future[None]] = []  # who waits for news
        self._is_closed = False
        self._error: BaseException | None = None

    def put(self, chunks: Iterable[Chunk]) -> None:
        with self._lock:
            self._chunks.extend(chunks)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """There will be no more."""
        with self._lock:
            self._is_closed, self._error = True, error
            self._wake()

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._take()) is not None:
            if isinstance(chunk, Chunk):
                yield chunk
            else:
                chunk.result()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while (chunk := self._take()) is not None:
            if isinstance(chunk, Chunk):
                yield chunk
            else:
                await asyncio.wrap_future(chunk)

    def _take(self) -> Chunk | Future[None] | None:
        """The next chunk; a future that ends when there is news; None at the end.

        Raises the error.
        """
        with self._lock:
            if self._chunks:
                return self._chunks.popleft()
            if not self._is_closed:
                news: Future[None] = Future()
                self._readers.append(news)
                return news
            if self._error is not None:
                raise self._error
            return None

    def _wake(self) -> None:
        for news in self._readers:
            if news.set_running_or_notify_cancel():
                news.set_result(None)
        self._readers.clear()
