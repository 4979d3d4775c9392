"""The Python client: an executor's verbs over NATS, without HTTP; it resumes by itself."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from jetflock.client.call import (
    ASK_TIMEOUT_S,
    DEFAULT_DEADLINE_S,
    Call,
    Conversation,
    Sampling,
    embed_calls,
    fork_call,
    generate_call,
    is_many,
    rerank_calls,
    score_calls,
)
from jetflock.client.job import Job
from jetflock.client.loop_thread import LoopThread

if TYPE_CHECKING:  # `import jetflock` stays cheap: nats is imported at the first connection
    from jetflock.client.result import Embeddings, Ranking, Result, Scores
    from jetflock.client.service import Service
    from jetflock.client.stream_reader import StreamReader

T = TypeVar("T")

Prompt = str | list[int]  # a text, or token ids


class Client:
    """Generates by the frontends' NATS service.

        with Client("nats://127.0.0.1:4222") as client:
            for result in client.generate(["Once upon a time", "A dragon"], max_tokens=40):
                print(result.text)

        async with Client() as client:
            async for chunk in client.generate_async("Once upon a time"):
                print(chunk.text_diff, end="")

    Parameters are those of the HTTP API: `max_tokens`, `temperature`, `stop`, `n`, `json_schema`,
    `tools`, ... A `prompt` (a text, or token ids) or `input_embeds` (rows of numbers, or a file of
    safetensors in base64) goes through /generate, `messages` through /v1/chat/completions, `embed`
    through /v1/embeddings, `score` and `rerank` through /v1/score and /v1/rerank.

    All methods may be called from any thread. The connection has a thread of its own; the first
    call makes it, or `with`. Methods wait for their answer; those on `_async` do not block an event
    loop, and those of a `Job` have an `a` in front for that.

    `deadline_s` is the time that a request may wait and run, however long anybody waits for it.
    With an `idempotency_key` a call that is repeated joins the first one's request, or gets its
    result; leaving it does not abort it, since others may read it.
    """

    def __init__(
        self,
        servers: str = "nats://127.0.0.1:4222",
        *,
        api_key: str | None = None,
        service: str = "jetflock",
        caller: str | None = None,
        **nats_options: Any,
    ) -> None:
        """`servers` may name several, comma separated; `nats_options` go to nats-py's connect.

        `caller` is the name that the server knows this client by, and below which it may ask: the
        `user`, unless another is given. "" for a server that gives no names.
        """
        self._servers = servers
        self._api_key = api_key
        self._service_name = service
        user = nats_options.get("user")
        self._caller = caller if caller is not None else user if isinstance(user, str) else ""
        self._nats_options = nats_options
        self._loop = LoopThread()
        self._connecting = asyncio.Lock()
        self._service: Service | None = None
        weakref.finalize(self, self._loop.close)

    def __enter__(self) -> Self:
        try:
            self._loop.call(self._connected())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        try:
            await self._loop.run(self._connected())
        except BaseException:
            self._loop.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self._loop.close)

    def shutdown(self) -> None:
        """Close the connection. Requests that were accepted run on; jobs that wait for them fail.

        Doing it twice is harmless.
        """
        self._loop.close()

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        sampling: Sampling | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> list[Result]: ...

    @overload
    def generate(
        self,
        prompt: None = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        messages: list[list[dict[str, Any]]],
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: Any = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        messages: Any = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Result | list[Result]:
        """The whole answer; of a list of prompts or conversations a list, in their order.

        `sampling` holds parameters that many calls share; for a list it may be a list too. The
        first prompt that fails ends the others: to have the rest nevertheless, use
        `generate_async` for each. An interrupted call (Ctrl-C) aborts its requests.
        Raises NotAccepted, ApiError or StreamLost.
        """
        if not is_many(given := prompt if messages is None else messages):
            call = self._call(prompt, sampling, messages, model, deadline_s, params)
            return self._wait(lambda service: service.whole(call))
        pairs = list(zip(given, _each(sampling, len(given)), strict=True))
        calls = [
            self._call(one, how, None, model, deadline_s, params)
            if messages is None
            else self._call(None, how, one, model, deadline_s, params)
            for one, how in pairs
        ]
        return self._wait(lambda service: service.whole_of_all(calls))

    def generate_async(
        self,
        prompt: Prompt | None = None,
        sampling: Sampling | None = None,
        *,
        messages: Conversation | None = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Job:
        """The future of an answer, at once: what goes wrong is told by the job."""
        call = self._call(prompt, sampling, messages, model, deadline_s, params)
        return self._job(lambda service: service.start(call))

    def submit(
        self,
        prompt: Prompt | None = None,
        sampling: Sampling | None = None,
        *,
        messages: Conversation | None = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Job:
        """`generate_async` that waits until the request is accepted: then it is not lost.

        In async code: `await client.generate_async(...).aaccepted()`.
        Raises NotAccepted when no frontend confirmed it in time, or ApiError.
        """
        return self.generate_async(
            prompt,
            sampling,
            messages=messages,
            model=model,
            deadline_s=deadline_s,
            **params,
        ).accepted()

    def resume(self, event_id: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Job:
        """Go on after an event (`chunk.event_id`), or from the start of a request by its id."""
        return self._job(lambda service: service.resume(event_id, deadline_s))

    def watch(self, event_id: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Job:
        """The same beside who reads it: whether we look or leave, it runs as if nobody did."""
        return self._job(lambda service: service.resume(event_id, deadline_s, looks_on=True))

    def fork(self, place: str, *, deadline_s: float = DEFAULT_DEADLINE_S, **params: Any) -> Job:
        """A new request that begins with the first tokens of another one.

        `place` is the id of an event (`chunk.event_id`), or that of a request: then `at` (tokens)
        or `text_offset` says where. `n`, `sampling`, `append` and `choice` are those of
        /v1/streams/{id}/fork.
        """
        call = fork_call(place, params, deadline_s)
        return self._job(lambda service: service.fork(call))

    def embed(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Embeddings:
        """A vector for a text (or its token ids), or for each of several, however many.

        `dimensions`, `pooling` and `normalize` are those of /v1/embeddings. An interrupted call
        aborts its requests. Raises NotAccepted, ApiError or StreamLost.
        """
        calls = embed_calls(inputs, {**params, "model": model}, deadline_s)
        return self._wait(lambda service: service.embed(calls))

    async def embed_async(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Embeddings:
        """See `embed`; a cancelled call aborts its requests."""
        calls = embed_calls(inputs, {**params, "model": model}, deadline_s)
        return await self._wait_async(lambda service: service.embed(calls))

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Scores:
        """How well texts fit together: one with one or with each of several, or each with its own.

        `instruction`, `truncate_prompt_tokens` and `use_activation` are those of /v1/score. An
        interrupted call aborts its requests. Raises NotAccepted, ApiError or StreamLost.
        """
        calls = score_calls(text_1, text_2, {**params, "model": model}, deadline_s)
        return self._wait(lambda service: service.score(calls))

    async def score_async(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Scores:
        """See `score`; a cancelled call aborts its requests."""
        calls = score_calls(text_1, text_2, {**params, "model": model}, deadline_s)
        return await self._wait_async(lambda service: service.score(calls))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Ranking:
        """The documents that fit a query, best first; `top_n` of them, or all. See `score`."""
        calls = rerank_calls(query, documents, {**params, "model": model}, deadline_s)
        return self._wait(lambda service: service.rerank(calls, documents, top_n))

    async def rerank_async(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **params: Any,
    ) -> Ranking:
        """See `rerank`; a cancelled call aborts its requests."""
        calls = rerank_calls(query, documents, {**params, "model": model}, deadline_s)
        return await self._wait_async(lambda service: service.rerank(calls, documents, top_n))

    def abort(self, request_id: str) -> int:
        """End a request. Returns how many choices were still running. Raises ClientError."""
        return self._wait(lambda service: service.abort(request_id))

    async def abort_async(self, request_id: str) -> int:
        """See `abort`."""
        return await self._wait_async(lambda service: service.abort(request_id))

    def models(self) -> list[dict[str, Any]]:
        """The models that are served, as OpenAI lists them. Raises ClientError."""
        return self._wait(lambda service: service.models())

    async def models_async(self) -> list[dict[str, Any]]:
        """See `models`."""
        return await self._wait_async(lambda service: service.models())

    def stats(self, model: str | None = None) -> dict[str, Any]:
        """How full the workers are, and what waits for them: as /v1/loads. Raises ClientError."""
        return self.ask("loads", {"model": model})

    async def stats_async(self, model: str | None = None) -> dict[str, Any]:
        """See `stats`."""
        return await self.ask_async("loads", {"model": model})

    def upload(self, path: str | Path, **fields: Any) -> dict[str, Any]:
        """Store a file of requests for `ask("batches", ...)`; `expires_after` is that of /v1/files.

        Returns OpenAI's file object. Raises ApiError or ClientError.
        """
        return self._wait(lambda service: service.upload(Path(path), fields))

    async def upload_async(self, path: str | Path, **fields: Any) -> dict[str, Any]:
        """See `upload`."""
        return await self._wait_async(lambda service: service.upload(Path(path), fields))

    def download(self, file_id: str, path: str | Path) -> None:
        """Fetch a file into one here. Raises ApiError or ClientError."""
        self._wait(lambda service: service.download(file_id, Path(path)))

    async def download_async(self, file_id: str, path: str | Path) -> None:
        """See `download`."""
        await self._wait_async(lambda service: service.download(file_id, Path(path)))

    def ask(
        self,
        endpoint: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Any endpoint of docs/nats-api.md that answers with one JSON object, by its name there.

        Raises ApiError, or ClientError when nobody answers in time: what was asked may happen
        nevertheless.
        """
        return self._wait(lambda service: service.ask(endpoint, dict(body or {}), timeout_s))

    async def ask_async(
        self,
        endpoint: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> dict[str, Any]:
        """See `ask`."""
        return await self._wait_async(
            lambda service: service.ask(endpoint, dict(body or {}), timeout_s)
        )

    def _call(
        self,
        prompt: Prompt | None,
        sampling: Any,
        messages: Conversation | None,
        model: str | None,
        deadline_s: float,
        params: Mapping[str, Any],
    ) -> Call:
        given = {**(sampling or {}), **params, "model": model}
        return generate_call(prompt, messages, given, deadline_s)

    def _job(self, start: Callable[[Service], Awaitable[StreamReader]]) -> Job:
        return Job(self._loop, lambda: self._with_service(start), self.fork)

    def _wait(self, act: Callable[[Service], Awaitable[T]]) -> T:
        return self._loop.call(self._with_service(act))

    async def _wait_async(self, act: Callable[[Service], Awaitable[T]]) -> T:
        return await self._loop.run(self._with_service(act))

    async def _with_service(self, act: Callable[[Service], Awaitable[T]]) -> T:
        return await act(await self._connected())

    async def _connected(self) -> Service:
        """Raises ClientError."""
        from jetflock.client.link import Link
        from jetflock.client.service import Service

        async with self._connecting:
            if self._service is None:
                link = await Link.connect(
                    self._servers, self._api_key, self._caller, self._nats_options
                )
                self._loop.exits.push_async_callback(link.close)
                self._service = Service(link, self._service_name, self._caller)
            return self._service


def _each(sampling: Sampling | Sequence[Sampling] | None, num: int) -> Sequence[Sampling | None]:
    """The sampling of each prompt. Raises ValueError."""
    if sampling is None or isinstance(sampling, Mapping):
        return [sampling] * num
    if len(sampling) != num:
        raise ValueError(f"there are {num} prompts, and {len(sampling)} sampling parameters")
    return sampling
