"""The frontends' NATS service as the client's event loop sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jetflock.client.call import ASK_TIMEOUT_S, Call
from jetflock.client.endpoints import ACCEPT_TIMEOUT_S, Endpoints
from jetflock.client.link import ConnectionChanged, Inbox, Link, Message, NoFrontend
from jetflock.client.piece import vector_of
from jetflock.client.result import Embeddings, Ranked, Ranking, Result, Scores
from jetflock.client.stream_reader import StreamReader
from jetflock.errors import ClientError, NotAccepted, NotFound, ServerError

RESULT_MARGIN_S = 30.0  # beyond the deadline: its outcome should be known by then
_NO_FRONTEND_PAUSE_S = 0.2
_KEYED_ATTEMPTS = 3  # to have a request accepted that may be sent twice
MAX_AT_ONCE = 256  # requests of one call that wait or run
_OFFSET_HEADER = "Jetflock-Offset"
_PART_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 300.0  # then the whole file is stored
_TRANSFER_ATTEMPTS = 5
_TRANSFER_PAUSE_S = 0.5


class Service:
    """Starts, resumes and ends requests, and asks what is answered in one message."""

    def __init__(self, link: Link, name: str, caller: str) -> None:
        self._link = link
        self._endpoints = Endpoints(link, name, caller)

    async def start(self, call: Call) -> StreamReader:
        """Returns when the request is accepted. Raises NotAccepted or ApiError."""
        body = call.body
        if call.needs_model:
            body = {**body, "model": await self._only_model()}
        return await self._start(call, body)

    async def resume(
        self, event_id: str, deadline_s: float, *, looks_on: bool = False
    ) -> StreamReader:
        """Reads on after an event, or from the start of a request by its id. Raises ClientError."""
        is_request_id = "." not in event_id
        body: dict[str, Any] = {"rid": event_id} if is_request_id else {"event_id": event_id}
        body |= {"watch": True} if looks_on else {}
        return await self._start(
            Call("resume", body, deadline_s),
            body,
            None if is_request_id else event_id,
            looks_on=looks_on,
        )

    async def fork(self, call: Call) -> StreamReader:
        """Returns when the fork is accepted. Raises NotAccepted or ApiError."""
        return await self._start(call, call.body)

    async def whole(self, call: Call) -> Result:
        """Start it and wait for its end. Whoever is cancelled meanwhile aborts it."""
        starting = asyncio.ensure_future(self.start(call))
        try:
            reader = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(ClientError):  # it may be accepted at this moment
                await self.leave(await starting)
            raise
        try:
            return await reader.result()
        finally:
            await self.leave(reader)

    async def whole_of_all(self, calls: list[Call]) -> list[Result]:
        """The answers in the order of the calls. The first error ends the others, and is raised."""
        gate = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(call: Call) -> Result:
            async with gate:
                return await self.whole(call)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(call)) for call in calls]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in running]

    async def embed(self, calls: list[Call]) -> Embeddings:
        """The vectors of all calls as one."""
        results = await self.whole_of_all(calls)
        return Embeddings(
            tuple(vector_of(choice.embedding) for result in results for choice in result.choices),
            _num_prompt_tokens(results),
        )

    async def score(self, calls: list[Call]) -> Scores:
        """The scores of all calls as one."""
        results = await self.whole_of_all(calls)
        scores = [choice.score for result in results for choice in result.choices]
        assert None not in scores, "a pair that has no score has failed"
        return Scores(
            tuple(score for score in scores if score is not None), _num_prompt_tokens(results)
        )

    async def rerank(
        self, calls: list[Call], documents: Sequence[str], top_n: int | None
    ) -> Ranking:
        """The documents of all calls, the best first."""
        given = await self.score(calls)
        ranked = map(Ranked, range(len(documents)), given.scores, documents)
        best = sorted(ranked, key=lambda each: -each.score)[: top_n or None]
        return Ranking(tuple(best), given.prompt_tokens)

    async def leave(self, reader: StreamReader) -> None:
        """Nobody here will read on: end it, unless it has ended, or others may read it."""
        if not reader.is_done and not reader.is_shared:
            with contextlib.suppress(ClientError):
                await reader.abort()
        reader.close()

    async def abort(self, request_id: str) -> int:
        """Returns how many choices were still running. Raises ClientError."""
        return await self._endpoints.abort(request_id)

    async def models(self) -> list[dict[str, Any]]:
        """The models as OpenAI lists them. Raises ClientError."""
        models: list[dict[str, Any]] = (await self.ask("models", {}, ACCEPT_TIMEOUT_S))["data"]
        return models

    async def upload(self, path: Path, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the file object. Raises ClientError."""
        return await upload(self._endpoints, path, {"purpose": "batch", **fields})

    async def download(self, file_id: str, path: Path) -> None:
        """Raises ClientError."""
        await download(self._endpoints, file_id, path)

    async def ask(
        self, endpoint: str, body: dict[str, Any], timeout_s: float = ASK_TIMEOUT_S
    ) -> dict[str, Any]:
        """One message there and one back. Raises ClientError."""
        return await self._endpoints.ask(endpoint, body, timeout_s)

    async def _only_model(self) -> str:
        models = await self.models()
        own = [model for model in models if model.get("parent") is None]  # no adapters
        if len(own) != 1:
            names = ", ".join(model["id"] for model in models) or "none"
            raise ClientError(f"name one of the models: {names}")
        return str(own[0]["id"])

    async def _start(
        self,
        call: Call,
        body: dict[str, Any],
        event_id: str | None = None,
        *,
        looks_on: bool = False,
    ) -> StreamReader:
        started_at = asyncio.get_running_loop().time()
        inbox, first = await self._accepted(call, json.dumps(body).encode(), started_at)
        return StreamReader(
            self._endpoints,
            inbox,
            first.request_id,
            started_at + call.deadline_s + RESULT_MARGIN_S,
            event_id=event_id,
            expects_usage=call.expects_usage,
            is_shared=call.is_keyed,
            looks_on=looks_on,
        )

    async def _accepted(self, call: Call, data: bytes, started_at: float) -> tuple[Inbox, Message]:
        """Its inbox, and what has come first. Raises NotAccepted or ApiError."""
        clock = asyncio.get_running_loop().time
        num_attempts = 0
        subject = self._endpoints.subject(call.endpoint)
        while True:
            inbox = self._link.inbox()
            try:
                first = await self._link.ask(subject, data, call.headers, inbox, ACCEPT_TIMEOUT_S)
            except NoFrontend:  # the request went nowhere: it is safe to send it again
                inbox.close()
                if clock() - started_at > ACCEPT_TIMEOUT_S:
                    raise NotAccepted(f"nobody listens at {subject}: it does not run") from None
                await asyncio.sleep(_NO_FRONTEND_PAUSE_S)
            except (TimeoutError, ConnectionChanged) as exc:
                inbox.close()
                num_attempts += 1
                if call.is_keyed and num_attempts < _KEYED_ATTEMPTS:
                    continue  # it joins itself, if it was accepted
                raise NotAccepted(
                    f"no frontend confirmed the request to {subject} within "
                    f"{clock() - started_at:.1f} s; it may run nevertheless"
                ) from exc
            except BaseException:
                inbox.close()
                raise
            else:
                return inbox, first


def _num_prompt_tokens(results: Sequence[Result]) -> int:
    return sum(result.usage.prompt_tokens for result in results if result.usage is not None)


class _TransferGone(Exception):
    """The transfer is gone, or its frontend does not answer."""


async def upload(endpoints: Endpoints, path: Path, body: dict[str, Any]) -> dict[str, Any]:
    """Sends a file part by part, and begins again when its frontend is gone.

    Returns the file object. Raises ApiError or ClientError.
    """
    content = await asyncio.to_thread(path.read_bytes)
    for _ in range(_TRANSFER_ATTEMPTS):
        transfer = await endpoints.ask("files.upload", {"filename": path.name, **body})
        subject, num = transfer["subject"], transfer["max_part_bytes"]
        try:
            for offset in range(0, len(content), num):
                await _send_part(endpoints, subject, offset, content[offset : offset + num])
            stored = await _send_part(endpoints, subject, len(content), b"", _END_TIMEOUT_S)
        except _TransferGone:
            await asyncio.sleep(_TRANSFER_PAUSE_S)
        else:
            file: dict[str, Any] = json.loads(stored)
            return file
    raise ClientError(f"{path.name} could not be sent: its frontends went away")


async def download(endpoints: Endpoints, file_id: str, path: Path) -> None:
    """Raises ApiError or ClientError."""
    offset = 0
    with path.open("wb") as file:
        for _ in range(_TRANSFER_ATTEMPTS):
            transfer = await endpoints.ask("files.download", {"id": file_id})
            try:
                while part := await _send_part(endpoints, transfer["subject"], offset, b""):
                    await asyncio.to_thread(file.write, part)
                    offset += len(part)
            except _TransferGone:
                await asyncio.sleep(_TRANSFER_PAUSE_S)
            else:
                return
    raise ClientError(f"{file_id} could not be fetched: its frontends went away")


async def _send_part(
    endpoints: Endpoints, subject: str, offset: int, data: bytes, timeout_s: float = _PART_TIMEOUT_S
) -> bytes:
    """Raises _TransferGone or ApiError."""
    with endpoints.link.inbox() as inbox:
        try:
            headers = {_OFFSET_HEADER: str(offset)}
            message = await endpoints.link.ask(subject, data, headers, inbox, timeout_s)
        except (TimeoutError, ConnectionChanged, NoFrontend, NotFound, ServerError) as exc:
            raise _TransferGone from exc
        return message.data
