"""The future of one request: its answer as it comes, and as a whole."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from jetflock.client.loop_thread import LoopThread, until
from jetflock.client.result import Chunk, Result
from jetflock.errors import ClientError

if TYPE_CHECKING:  # `import jetflock` stays cheap: nats is imported at the first connection
    from jetflock.client.stream_reader import StreamReader


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


class Job:
    """A request on its way. Use it from any thread or event loop.

        result = job.result(timeout=60)  # or, in async code: await job.aresult(60), await job
        for chunk in job: ...            # or: async for chunk in job
        with job: ...                    # aborts it at the end, unless it is done

    It is read in the client's own thread, whether or not anybody waits, and resumed at another
    frontend when its stream is cut. Nothing but `abort` ends the request: who stops waiting or
    iterating, or whose `timeout` runs out, leaves it running. `timeout` is in seconds, as in every
    `Future` of Python's; what runs out raises TimeoutError.
    Each chunk is handed out once, however many iterate.
    """

    def __init__(
        self,
        loop: LoopThread,
        start: Callable[[], Coroutine[Any, Any, StreamReader]],
        fork: Callable[..., Job],
    ) -> None:
        self._loop = loop
        self._fork = fork
        self._start = start
        self._chunks = ChunkQueue()
        self._reader: Future[StreamReader] = Future()
        self._result: Future[Result] = Future()
        loop.spawn(self._run())

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return aiter(self._chunks)

    def __await__(self) -> Generator[Any, None, Result]:
        return self.aresult().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.done():
            self._loop.call(self._leave())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if not self.done():
            await self._loop.run(self._leave())

    @property
    def request_id(self) -> str:
        """Raises ClientError when the request is not accepted yet."""
        return self._accepted_reader().request_id

    @property
    def event_id(self) -> str | None:
        """The id of the last event that came: `Client.resume` goes on behind it.

        Raises ClientError.
        """
        return self._accepted_reader().event_id

    @property
    def num_resumes(self) -> int:
        """How often the stream was cut so far. Raises ClientError when it is not accepted yet."""
        return self._accepted_reader().num_resumes

    def accepted(self, timeout: float | None = None) -> Self:
        """Wait until the queue has stored it: from then on it is not lost.

        Raises NotAccepted when no frontend confirmed it, ApiError when it is refused, or
        TimeoutError.
        """
        self._reader.result(timeout)
        return self

    async def aaccepted(self, timeout: float | None = None) -> Self:
        """See `accepted`."""
        await until(self._reader, timeout)
        return self

    def result(self, timeout: float | None = None) -> Result:
        """The whole answer; of a job that was resumed after an event, what came behind that.

        Raises ApiError, NotAccepted, StreamLost, or TimeoutError: then the request runs on, and may
        be asked again, or aborted.
        """
        return self._result.result(timeout)

    async def aresult(self, timeout: float | None = None) -> Result:
        """See `result`."""
        return await until(self._result, timeout)

    def fork(self, event_id: str | None = None, **params: Any) -> Job:
        """See `Client.fork`: at an event, by `at` or `text_offset`, or else behind the last event
        that came. This job goes on.

        Raises ClientError when the request is not accepted yet.
        """
        if not params.keys() & {"at", "text_offset"}:
            event_id = event_id or self.event_id
        return self._fork(event_id or self.request_id, **params)

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._result.done()

    def abort(self) -> int:
        """End the request. Returns how many choices were still running; `result` raises Cancelled.

        Raises ClientError when no frontend confirms it.
        """
        return self._loop.call(self._abort())

    async def aabort(self) -> int:
        """See `abort`."""
        return await self._loop.run(self._abort())

    async def _run(self) -> None:
        """Runs in the client's thread, until the answer is complete."""
        reader = None
        try:
            reader = await self._start()
            self._reader.set_result(reader)
            while chunks := await reader.next():
                self._chunks.put(chunks)
            result = await reader.result()
        except asyncio.CancelledError:
            why = "the client was shut down"
            self._fail(ClientError(why) if reader is None else reader.lost(why))
            raise
        except Exception as exc:
            self._fail(exc)
        else:
            self._result.set_result(result)
            self._chunks.close()
        finally:
            if reader is not None:
                reader.close()

    def _fail(self, error: Exception) -> None:
        if not self._reader.done():
            self._reader.set_exception(error)
        self._result.set_exception(error)
        self._chunks.close(error)

    async def _abort(self) -> int:
        reader = await until(self._reader)
        return await reader.abort()

    async def _leave(self) -> None:
        """Ends it behind a `with`: nothing more can be said of an error."""
        try:
            reader = await until(self._reader)
            if not reader.is_shared:
                await reader.abort()
        except ClientError:
            pass

    def _accepted_reader(self) -> StreamReader:
        if not self._reader.done():
            raise ClientError("the request is not accepted yet: wait for job.accepted()")
        return self._reader.result()
