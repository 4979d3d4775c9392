"""The Python client: generates over NATS, without HTTP, and resumes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Self

from jetflock.errors import ClientError, NotAccepted

if TYPE_CHECKING:  # `import jetflock` stays cheap: nats is imported at the first connection
    from jetflock.job import Job
    from jetflock.link import Link
    from jetflock.result import Chunk, Embeddings, Result

DEFAULT_TIMEOUT_S = 600.0
ACCEPT_TIMEOUT_S = 10.0
GRACE_S = 30.0  # how long a request runs on while we are away
_RESULT_MARGIN_S = 30.0  # beyond the deadline: its outcome should be known by then
_NO_FRONTEND_PAUSE_S = 0.2
_KEYED_ATTEMPTS = 3  # to have a request accepted that may be sent twice
_EMBED_AT_ONCE = 256  # inputs of one streamed request


class Client:
    """Talks to the frontends' NATS service.

        async with await Client.connect("nats://127.0.0.1:4222") as client:
            result = await client.generate(messages=[{"role": "user", "content": "Hello!"}])
            async for chunk in client.stream("Once upon a time"):
                print(chunk, end="")

    Parameters of a request are those of the HTTP API: `max_tokens`, `temperature`, `stop`,
    `json_schema`, `response_format`, ...
    `prompt` and `input_ids` go through /generate, `messages` through /v1/chat/completions,
    `embed` through /v1/embeddings.
    With an `idempotency_key`, a call that is repeated joins the first one's request, or gets its
    result; leaving it does not abort it, since others may read it.
    """

    def __init__(self, link: Link, service: str) -> None:
        self._link = link
        self._service = service

    @classmethod
    async def connect(
        cls,
        servers: str = "nats://127.0.0.1:4222",
        api_key: str | None = None,
        service: str = "jetflock",
        **nats_options: Any,
    ) -> Self:
        """`servers` may name several, comma separated; `nats_options` go to nats-py's connect.

        Raises ClientError.
        """
        from jetflock.link import Link

        return cls(await Link.connect(servers, api_key, nats_options), service)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Requests that were accepted run on."""
        await self._link.close()

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[dict[str, Any]] | None = None,
        input_ids: Sequence[int] | None = None,
        model: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **params: Any,
    ) -> Result:
        """The whole answer. A cancelled call aborts its request."""
        job = await self.submit(
            prompt,
            messages=messages,
            input_ids=input_ids,
            model=model,
            timeout_s=timeout_s,
            **params,
        )
        try:
            return await job
        finally:
            await self._abort_unless_done(job)

    async def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[dict[str, Any]] | None = None,
        input_ids: Sequence[int] | None = None,
        model: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **params: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer as it comes. Leaving the loop early and closing the iterator aborts it."""
        job = await self.submit(
            prompt,
            messages=messages,
            input_ids=input_ids,
            model=model,
            timeout_s=timeout_s,
            **params,
        )
        try:
            async for chunk in job:
                yield chunk
        finally:
            await self._abort_unless_done(job)

    async def submit(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[dict[str, Any]] | None = None,
        input_ids: Sequence[int] | None = None,
        model: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **params: Any,
    ) -> Job:
        """Returns when the request is accepted: from then on it is not lost.

        Raises NotAccepted when no frontend confirmed it in time, or ApiError.
        """
        if sum(given is not None for given in (prompt, messages, input_ids)) != 1:
            raise TypeError("give one of prompt, messages and input_ids")
        body: dict[str, Any] = {**params, "stream": True}
        if model is not None:
            body["model"] = model
        if messages is None:
            endpoint = "generate"
            body |= {"text": prompt} if input_ids is None else {"input_ids": list(input_ids)}
        else:
            endpoint = "chat.completions"
            body |= {"messages": list(messages), "stream_options": {"include_usage": True}}
            body.setdefault("model", await self._only_model() if model is None else model)
        headers = {"X-Request-Timeout": f"{timeout_s:g}", "X-Resume-Grace": f"{GRACE_S:g}"}
        return await self._start(endpoint, body, headers, timeout_s)

    async def embed(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        model: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **params: Any,
    ) -> Embeddings:
        """A vector for a text (or its token ids), or for each of several, however many.

        `dimensions`, `pooling` and `normalize` are those of /v1/embeddings. A cancelled call aborts
        its requests. Raises NotAccepted, ApiError or StreamLost.
        """
        from jetflock.result import Embeddings, vector_of

        items = list(inputs)
        is_one = isinstance(inputs, str) or all(isinstance(item, int) for item in items)
        body = {
            **params,
            "model": await self._only_model() if model is None else model,
            "encoding_format": "base64",
            "stream": True,
        }
        headers = {"X-Request-Timeout": f"{timeout_s:g}", "X-Resume-Grace": f"{GRACE_S:g}"}
        key = body.get("idempotency_key")
        jobs: list[Job] = []
        try:
            for start in range(0, 1 if is_one else max(1, len(items)), _EMBED_AT_ONCE):
                part = inputs if is_one else items[start : start + _EMBED_AT_ONCE]
                if key is not None and start:
                    body["idempotency_key"] = f"{key}+{start}"
                jobs.append(await self._start("embed", {**body, "input": part}, headers, timeout_s))
            results = [await job for job in jobs]
        finally:
            for job in jobs:
                await self._abort_unless_done(job)
        return Embeddings(
            tuple(vector_of(choice.embedding) for result in results for choice in result.choices),
            sum(result.usage.prompt_tokens for result in results if result.usage is not None),
        )

    async def resume(self, event_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Job:
        """Go on after an event (`chunk.event_id`), or from the start of a request by its id."""
        is_request_id = "." not in event_id
        return await self._start(
            "resume",
            {"rid": event_id} if is_request_id else {"event_id": event_id},
            {"X-Resume-Grace": f"{GRACE_S:g}"},
            timeout_s,
            event_id=None if is_request_id else event_id,
        )

    async def abort(self, job: Job | str) -> int:
        """End a request, by job or request id. Returns how many choices were still running."""
        request_id = job if isinstance(job, str) else job.request_id
        reply = await self._ask("abort", {"rid": request_id})
        return int(reply["num_aborted"])

    async def models(self) -> list[dict[str, Any]]:
        """The models that are served, as OpenAI lists them."""
        models: list[dict[str, Any]] = (await self._ask("models", {}))["data"]
        return models

    async def _only_model(self) -> str:
        models = await self.models()
        if len(models) != 1:
            names = ", ".join(model["id"] for model in models) or "none"
            raise ClientError(f"name one of the models: {names}")
        return str(models[0]["id"])

    async def _start(
        self,
        endpoint: str,
        body: dict[str, Any],
        headers: dict[str, str],
        timeout_s: float,
        event_id: str | None = None,
    ) -> Job:
        from jetflock.job import Job
        from jetflock.link import ConnectionChanged, NoFrontend

        clock = asyncio.get_running_loop().time
        started_at = clock()
        has_key = body.get("idempotency_key") is not None
        num_attempts = 0
        subject, data = f"{self._service}.{endpoint}", json.dumps(body).encode()
        while True:
            inbox = self._link.inbox()
            try:
                first = await self._link.ask(subject, data, headers, inbox, ACCEPT_TIMEOUT_S)
                break
            except NoFrontend:  # the request went nowhere: it is safe to send it again
                inbox.close()
                if clock() - started_at > ACCEPT_TIMEOUT_S:
                    raise NotAccepted(f"nobody listens at {subject}: it does not run") from None
                await asyncio.sleep(_NO_FRONTEND_PAUSE_S)
            except (TimeoutError, ConnectionChanged) as exc:
                inbox.close()
                num_attempts += 1
                if has_key and num_attempts < _KEYED_ATTEMPTS:
                    continue  # it joins itself, if it was accepted
                raise NotAccepted(
                    f"no frontend confirmed the request to {subject} within "
                    f"{clock() - started_at:.1f} s; it may run nevertheless"
                ) from exc
            except BaseException:
                inbox.close()
                raise
        return Job(
            self._link,
            self._service,
            inbox,
            first.request_id,
            started_at + timeout_s + _RESULT_MARGIN_S,
            event_id=event_id,
            expects_usage="stream_options" in body or endpoint == "embed",
            is_shared=has_key,
        )

    async def _ask(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        from jetflock.link import ConnectionChanged, NoFrontend

        inbox = self._link.inbox()
        subject = f"{self._service}.{endpoint}"
        data = json.dumps(body).encode()
        try:
            message = await self._link.ask(subject, data, {}, inbox, ACCEPT_TIMEOUT_S)
        except NoFrontend as exc:
            raise ClientError(f"nobody listens at {subject}") from exc
        except (TimeoutError, ConnectionChanged) as exc:
            raise ClientError(f"no answer from {subject}") from exc
        finally:
            inbox.close()
        reply: dict[str, Any] = json.loads(message.data)
        return reply

    async def _abort_unless_done(self, job: Job) -> None:
        if not job.is_done and not job.is_shared:
            with contextlib.suppress(ClientError):
                await self.abort(job)
