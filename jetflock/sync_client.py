"""The client for code without an event loop: the same calls, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from jetflock.client import Client

if TYPE_CHECKING:
    from jetflock.job import Job
    from jetflock.result import Chunk, Embeddings, Result

T = TypeVar("T")


class SyncClient:
    """A `Client` whose event loop runs in a thread of its own.

    with SyncClient.connect("nats://127.0.0.1:4222") as client:
        print(client.generate("Once upon a time", max_tokens=50).text)
    """

    def __init__(self, runner: LoopThread, client: Client) -> None:
        self._runner = runner
        self._client = client

    @classmethod
    def connect(
        cls,
        servers: str = "nats://127.0.0.1:4222",
        api_key: str | None = None,
        service: str = "jetflock",
        **nats_options: Any,
    ) -> Self:
        """See `Client.connect`."""
        runner = LoopThread()
        try:
            client = runner.call(Client.connect(servers, api_key, service, **nats_options))
        except BaseException:
            runner.close()
            raise
        return cls(runner, client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.call(self._client.close())
        self._runner.close()

    def generate(self, prompt: str | None = None, **params: Any) -> Result:
        """See `Client.generate`."""
        return self._runner.call(self._client.generate(prompt, **params))

    def stream(self, prompt: str | None = None, **params: Any) -> Iterator[Chunk]:
        """See `Client.stream`."""
        return self._runner.iterate(self._client.stream(prompt, **params))

    def embed(
        self, inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]], **params: Any
    ) -> Embeddings:
        """See `Client.embed`."""
        return self._runner.call(self._client.embed(inputs, **params))

    def submit(self, prompt: str | None = None, **params: Any) -> SyncJob:
        """See `Client.submit`."""
        return SyncJob(self._runner, self._runner.call(self._client.submit(prompt, **params)))

    def resume(self, event_id: str, **params: Any) -> SyncJob:
        """See `Client.resume`."""
        return SyncJob(self._runner, self._runner.call(self._client.resume(event_id, **params)))

    def abort(self, job: SyncJob | str) -> int:
        """See `Client.abort`."""
        request_id = job if isinstance(job, str) else job.request_id
        return self._runner.call(self._client.abort(request_id))

    def models(self) -> list[dict[str, Any]]:
        """See `Client.models`."""
        return self._runner.call(self._client.models())


class SyncJob:
    """An accepted request: iterate for its text, or wait for the `result`."""

    def __init__(self, runner: LoopThread, job: Job) -> None:
        self._runner = runner
        self._job = job

    @property
    def request_id(self) -> str:
        return self._job.request_id

    def __iter__(self) -> Iterator[Chunk]:
        return self._runner.iterate(aiter(self._job))

    def result(self) -> Result:
        return self._runner.call(self._job.result())


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jetflock-client", daemon=True
        )
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Closes `items` when the caller leaves its loop."""

        async def next_item() -> tuple[T, ...]:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        async def close() -> None:
            if (aclose := getattr(items, "aclose", None)) is not None:
                await aclose()

        try:
            while item := self.call(next_item()):
                yield item[0]
        finally:
            self.call(close())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
