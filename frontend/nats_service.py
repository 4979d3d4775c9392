"""The NATS surface: a micro service that takes the bodies of the HTTP API and sends its events."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER, Request
from nats.micro.service import Service

from frontend.answer import Answer
from frontend.answers.event_id import parse_event_id
from frontend.answers.event_writer import encode_json, error_body
from frontend.app import model_list, rid_of_body
from frontend.generation import Interrupt, Interrupted, error_of_interrupt
from frontend.http_request import CallerReader
from frontend.inference import Inference
from frontend.job import Caller
from frontend.loads.routes import LoadRoutes
from frontend.metrics import FrontendMetrics
from frontend.model_directory import ModelDirectory
from frontend.requests.request_body import convert, parse_object
from frontend.tokens.bodies import ModelBody
from frontend.tokens.tokenizing import Tokenizing
from shared.connection import round_trip
from shared.errors import (
    InternalError,
    InvalidRequest,
    QueueFull,
    RateLimited,
    RequestError,
    RequestTooLarge,
    ServiceUnavailable,
)
from shared.log import get_logger
from shared.protocol import Surface

STATUS_HEADER = "Jetflock-Status"
REQUEST_ID_HEADER = "Jetflock-Request-Id"
EVENT_ID_HEADER = "Jetflock-Event-Id"
EVENT_BEFORE_HEADER = "Jetflock-Event-Before"  # id of the event before: was one lost?
KEEPALIVE_S = 2.0
_HEADER_ROOM = 1024

log = get_logger(__name__)

Handler = Callable[[dict[str, Any], Caller], Awaitable[Answer | bytes]]


class Reply:
    """Messages to the inbox of one caller, in order."""

    def __init__(self, nc: Client, subject: str) -> None:
        self._nc = nc
        self._subject = subject

    async def send(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(nats.errors.Error):  # the caller finds the result by its id
            await self._nc.publish(self._subject, data, headers=headers)

    async def send_error(self, error: RequestError, headers: dict[str, str]) -> None:
        await self.send(error_body(error), {**headers, **error_headers(error)})


def error_headers(error: RequestError) -> dict[str, str]:
    """The error convention of NATS micro services."""
    headers = {
        ERROR_HEADER: " ".join(error.message.split())[:500],
        ERROR_CODE_HEADER: str(error.status_code),
    }
    if isinstance(error, RateLimited | QueueFull | ServiceUnavailable):
        headers["Retry-After"] = str(error.retry_after_s)
    return headers


class NatsService:
    """Endpoints under `<name>.`. A caller's death cannot be seen: its requests run to their end."""

    def __init__(
        self,
        nc: Client,
        name: str,
        inference: Inference,
        models: ModelDirectory,
        tokenizing: Tokenizing,
        loads: LoadRoutes,
        callers: CallerReader,
        metrics: FrontendMetrics,
    ) -> None:
        self._nc = nc
        self._name = name
        self._inference = inference
        self._models = models
        self._tokenizing = tokenizing
        self._loads = loads
        self._callers = callers
        self._metrics = metrics
        self._stopping = asyncio.Event()
        self.started = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests; what runs goes on."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped, and until the last answer is out."""
        async with asyncio.TaskGroup() as tasks:
            service = await self._start(tasks)
            self.started.set()
            try:
                await self._stopping.wait()
            finally:
                with contextlib.suppress(nats.errors.Error):
                    await service.stop()

    async def _start(self, tasks: asyncio.TaskGroup) -> Service:
        service = await nats.micro.add_service(
            self._nc,
            name=self._name,
            version=importlib.metadata.version("jetflock"),
            description="Large language models: OpenAI's bodies in, its events out.",
        )
        group = service.add_group(name=self._name)
        for subject, handler in (
            ("chat.completions", self._starter(Surface.CHAT)),
            ("completions", self._starter(Surface.COMPLETIONS)),
            ("generate", self._starter(Surface.GENERATE)),
            ("embed", self._starter(Surface.EMBEDDINGS)),
            ("resume", self._resume),
            ("abort", self._abort),
            ("models", self._list_models),
            ("tokenize", self._tokenize),
            ("detokenize", self._detokenize),
            ("tokenizer_info", self._tokenizer_info),
            ("loads", self._tell_loads),
        ):
            await group.add_endpoint(
                name=subject.replace(".", "-"),
                subject=subject,
                handler=self._endpoint(subject, handler, tasks),
            )
        await round_trip(self._nc)  # from here on the server knows of them
        return service

    def _endpoint(
        self, subject: str, handler: Handler, tasks: asyncio.TaskGroup
    ) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            # The service waits for its handlers one after the other.
            if request._msg.reply:
                tasks.create_task(self._serve(subject, handler, request))

        return handle

    async def _serve(self, subject: str, handler: Handler, request: Request) -> None:
        reply = Reply(self._nc, request._msg.reply)
        status = 200
        try:
            headers = {name.lower(): value for name, value in (request.headers or {}).items()}
            caller = self._callers.caller(headers, "nats")
            body = parse_object(request.data) if request.data else {}
            answer = await handler(body, caller)
        except RequestError as exc:
            status = exc.status_code
            await reply.send_error(exc, {})
        except Exception:
            log.exception("request_failed", subject=subject)
            status = 500
            error = InternalError("The frontend could not handle the request.")
            await reply.send_error(error, {})
        else:
            if isinstance(answer, bytes):
                status = await self._send_body(answer, reply, {})
            else:
                status = await self._send_answer(answer, reply)
        self._metrics.requests.labels("nats", subject, status).inc()

    def _starter(self, surface: Surface) -> Handler:
        async def start(body: dict[str, Any], caller: Caller) -> Answer:
            return await self._inference.start(surface, body, caller)

        return start

    async def _resume(self, body: dict[str, Any], caller: Caller) -> Answer:
        event_id = None
        if isinstance(text := body.get("event_id"), str):
            event_id = parse_event_id(text)
            group_id = event_id.group_id
        elif body.get("event_id") is None:
            group_id = rid_of_body(body)
        else:
            raise InvalidRequest("'event_id' must be a string", param="event_id")
        stream = body.get("stream") is not False
        if not stream:
            event_id = None
        return await self._inference.resume(group_id, event_id, caller, stream=stream)

    async def _abort(self, body: dict[str, Any], caller: Caller) -> bytes:
        rid = rid_of_body(body)
        num_aborted = await self._inference.abort(rid, caller)
        return encode_json({"rid": rid, "num_aborted": num_aborted})

    async def _list_models(self, body: dict[str, Any], caller: Caller) -> bytes:
        return model_list(self._models)

    async def _tokenize(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.tokenize(body)

    async def _detokenize(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.detokenize(body)

    async def _tokenizer_info(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.info(convert(body, ModelBody).model)

    async def _tell_loads(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._loads.answer(convert(body, ModelBody).model)

    async def _send_answer(self, answer: Answer, reply: Reply) -> int:
        """Returns the status of the outcome."""
        status = 500
        try:
            if answer.stream:
                status = await self._send_stream(answer, reply)
            else:
                status = await self._send_whole(answer, reply)
        except asyncio.CancelledError:
            answer.generation.cut(Interrupt.SHUTDOWN)
            raise
        finally:
            self._inference.close(answer, status, "nats")
        return status

    async def _send_whole(self, answer: Answer, reply: Reply) -> int:
        group_id = answer.generation.group_id
        headers = {REQUEST_ID_HEADER: group_id}
        try:
            body = await answer.feed.whole()
        except RequestError as exc:
            await reply.send_error(exc, headers)
            return exc.status_code
        except Interrupted as exc:
            error = error_of_interrupt(exc.interrupt, group_id)
            await reply.send_error(error, headers)
            return error.status_code
        return await self._send_body(body, reply, headers, "with 'stream': true")

    async def _send_body(
        self, body: bytes, reply: Reply, headers: dict[str, str], remedy: str = "over HTTP"
    ) -> int:
        """One message, or the error that it is too large for one. Returns the status."""
        if len(body) > self._nc.max_payload - _HEADER_ROOM:
            error = RequestTooLarge(
                f"The answer has {len(body)} bytes, one NATS message takes "
                f"{self._nc.max_payload}: ask {remedy}.",
            )
            await reply.send_error(error, headers)
            return error.status_code
        await reply.send(body, headers)
        return 200

    async def _send_stream(self, answer: Answer, reply: Reply) -> int:
        generation, feed = answer.generation, answer.feed
        headers = {REQUEST_ID_HEADER: generation.group_id}
        await reply.send(b"", {**headers, STATUS_HEADER: "accepted"})
        event_before = feed.event_id.decode()
        events = feed.opening(resumed=answer.resumed)
        generation.last_sent_at = asyncio.get_running_loop().time()
        generation.keepalive_s = KEEPALIVE_S
        try:
            while True:
                for event in events:
                    event_headers = {**headers, EVENT_ID_HEADER: event.event_id.decode()}
                    if generation.reply.answer is not None:  # its events do not tell all text
                        event_headers[EVENT_BEFORE_HEADER] = event_before
                        event_before = event_headers[EVENT_ID_HEADER]
                    if feed.error is not None and event is events[-1]:
                        event_headers |= error_headers(feed.error)
                    if len(event.data) > self._nc.max_payload - _HEADER_ROOM:
                        return await self._end_too_large(len(event.data), reply, event_headers)
                    await reply.send(event.data, event_headers)
                if feed.is_ended:
                    break
                events = await feed.next()
                if not events:
                    await reply.send(b"", {**headers, STATUS_HEADER: "waiting"})
        except Interrupted as exc:
            error = error_of_interrupt(exc.interrupt, generation.group_id)
            await reply.send(b"", {**headers, STATUS_HEADER: "interrupted", **error_headers(error)})
            return error.status_code
        await reply.send(b"", {**headers, STATUS_HEADER: "end"})
        return 200 if feed.error is None else feed.error.status_code

    async def _end_too_large(self, num_bytes: int, reply: Reply, headers: dict[str, str]) -> int:
        """Only the logprobs of a long prompt make such an event; over HTTP it fits."""
        error = RequestTooLarge(
            f"An event of this answer has {num_bytes} bytes, one NATS message takes "
            f"{self._nc.max_payload}: ask over HTTP, or for fewer logprobs.",
        )
        await reply.send_error(error, headers)
        await reply.send(b"", {**headers, STATUS_HEADER: "end"})
        return error.status_code
