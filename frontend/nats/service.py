"""The NATS surface: a micro service that takes the bodies of the HTTP API and sends its events."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import Request
from nats.micro.service import Service

from frontend.access_log import log_refused
from frontend.answers.event_writer import encode_json
from frontend.files.transfers import OFFSET_PARAM, Transfer, Transfers
from frontend.http_request import CallerReader
from frontend.job import Caller
from frontend.metrics import FrontendMetrics
from frontend.nats.answers import NatsAnswers
from frontend.nats.endpoints import Handler, IdBody
from frontend.nats.reply import Reply
from frontend.requests.request_body import convert, parse_object
from shared.connection import round_trip
from shared.errors import InternalError, RequestError
from shared.log import get_logger

log = get_logger(__name__)


class NatsService:
    """Endpoints under `<name>.`. A caller's death cannot be seen: its requests run to their end.

    Parts of files have subjects of this frontend alone: it has what came before.
    """

    def __init__(
        self,
        nc: Client,
        name: str,
        frontend_id: str,
        endpoints: Mapping[str, Handler],
        answers: NatsAnswers,
        transfers: Transfers,
        callers: CallerReader,
        metrics: FrontendMetrics,
    ) -> None:
        self._nc = nc
        self._name = name
        self._part_prefix = f"{name}.files.part.{frontend_id}"
        self._endpoints = {
            **endpoints,
            "files.upload": self._upload,
            "files.download": self._download,
        }
        self._answers = answers
        self._transfers = transfers
        self._callers = callers
        self._metrics = metrics
        self._stopping = asyncio.Event()
        self.started = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests; what runs goes on."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped, and until the last answer is out."""
        try:
            async with asyncio.TaskGroup() as tasks:
                service = await self._start(tasks)
                parts = await self._nc.subscribe(
                    f"{self._part_prefix}.*", cb=self._part_handler(tasks)
                )
                await round_trip(self._nc)  # from here on the server knows of them
                self.started.set()
                try:
                    await self._stopping.wait()
                finally:
                    with contextlib.suppress(nats.errors.Error):
                        await parts.unsubscribe()
                        await service.stop()
        finally:
            self._transfers.close()

    async def _start(self, tasks: asyncio.TaskGroup) -> Service:
        service = await nats.micro.add_service(
            self._nc,
            name=self._name,
            version=importlib.metadata.version("jetflock"),
            description="Large language models: OpenAI's bodies in, its events out.",
        )
        group = service.add_group(name=self._name)
        for subject, handler in self._endpoints.items():
            await group.add_endpoint(
                name=subject.replace(".", "-"),
                subject=subject,
                handler=self._endpoint(subject, handler, tasks),
            )
        return service

    def _part_handler(self, tasks: asyncio.TaskGroup) -> Callable[[Msg], Awaitable[None]]:
        async def handle(message: Msg) -> None:
            if message.reply:
                tasks.create_task(self._serve_part(message))

        return handle

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

        async def answered() -> int:
            headers = {name.lower(): value for name, value in (request.headers or {}).items()}
            caller = self._callers.caller(headers, "nats")
            body = parse_object(request.data) if request.data else {}
            answer = await handler(body, caller)
            if isinstance(answer, bytes):
                return await reply.send_body(answer, {})
            return await self._answers.send(answer, reply)

        await self._counted(subject, reply, answered)

    async def _serve_part(self, message: Msg) -> None:
        reply = Reply(self._nc, message.reply)

        async def answered() -> int:
            name = message.subject.rpartition(".")[2]
            offset = (message.headers or {}).get(OFFSET_PARAM, "")
            await reply.send(await self._transfers.part(name, offset, message.data))
            return 200

        await self._counted("files.part", reply, answered)

    async def _counted(
        self, subject: str, reply: Reply, answered: Callable[[], Awaitable[int]]
    ) -> None:
        """Every request gets an answer, and is counted by its status."""
        try:
            status = await answered()
        except RequestError as exc:
            status = exc.status_code
            log_refused(exc, subject, "nats")
            await reply.send_error(exc, {})
        except Exception:
            log.exception("request_failed", subject=subject)
            status = 500
            error = InternalError("The frontend could not handle the request.")
            log_refused(error, subject, "nats")
            await reply.send_error(error, {})
        self._metrics.requests.labels("nats", subject, status).inc()

    async def _upload(self, body: dict[str, Any], caller: Caller) -> bytes:
        return self._told(await self._transfers.upload(body, caller))

    async def _download(self, body: dict[str, Any], caller: Caller) -> bytes:
        return self._told(await self._transfers.download(convert(body, IdBody).id, caller))

    def _told(self, transfer: Transfer) -> bytes:
        """Where the parts go to, or come from."""
        return encode_json(
            {
                "subject": f"{self._part_prefix}.{transfer.name}",
                "bytes": transfer.num_bytes,
                "max_part_bytes": transfer.max_part_bytes,
            }
        )
