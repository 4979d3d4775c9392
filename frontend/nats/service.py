"""The NATS surface: a micro service that takes the bodies of the HTTP API and sends its events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import Request
from nats.micro.service import EndpointStats, Service

from frontend.fields.request_body import convert
from frontend.http.http_request import CallerReader
from frontend.inference.telemetry.access_log import log_refused
from frontend.jobs.body_intake import BodyIntake
from frontend.jobs.job import Caller
from frontend.nats.endpoints import Handler, IdBody
from frontend.nats.reply import Reply, send_answer
from frontend.stored.files.file_transfers import OFFSET_PARAM, Transfer, Transfers
from frontend.stored.files.files import Files
from frontend.tenants.caller_gate import CallerGate
from frontend.text.event_writer import encode_json
from shared.errors import InternalError, InvalidRequest, RequestError
from shared.machine.installation import own_version
from shared.nats_client.connection import round_trip
from shared.nats_client.connection_end import end_subscription
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import EventCounter

log = get_logger(__name__)


@dataclass(slots=True)
class _Errors:
    """Answers of one endpoint with an error, since the service began."""

    num: int = 0
    last_status: int = 0


class NatsService:
    """Endpoints under `<name>.`. A caller's death cannot be seen: its requests run to their end.

    It has a connection of its own, which may do nothing but hear callers and answer them: what a
    caller makes it publish, wherever to, does no harm.

    Parts of files have subjects of this frontend alone: it has what came before.
    """

    def __init__(
        self,
        nc: Client,
        gate: CallerGate,
        frontend_id: str,
        endpoints: Mapping[str, Handler],
        transfers: Transfers,
        callers: CallerReader,
        intake: BodyIntake,
        answered: EventCounter,
    ) -> None:
        self._nc = nc
        self._gate = gate
        self._parts = f"files.part.{frontend_id}"
        self._endpoints = {
            **endpoints,
            "files.upload": self._upload,
            "files.download": self._download,
        }
        self._transfers = transfers
        self._callers = callers
        self._intake = intake
        self._answered = answered
        self._errors: dict[str, _Errors] = {}  # by the endpoint's name, for its statistics
        self._stopping = asyncio.Event()
        self.started = asyncio.Event()

    def lead_to(self, endpoints: Mapping[str, Handler], files: Files) -> None:
        """What comes from now on goes there; parts of files go on where they are."""
        self._endpoints.update(endpoints)
        self._transfers.lead_to(files)

    def stop(self) -> None:
        """Take no more requests; what runs goes on."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped, and until the last answer is out."""
        try:
            async with asyncio.TaskGroup() as tasks:
                service = await self._start(tasks)
                parts = await self._nc.subscribe(
                    self._gate.subject(f"{self._parts}.*", "*"), cb=self._part_handler(tasks)
                )
                if not await round_trip(self._nc):  # from here on the server knows of them
                    log.error("nats_service_may_not_be_heard", name=self._gate.service)
                self.started.set()
                try:
                    await self._stopping.wait()
                finally:
                    await end_subscription(parts)
                    with contextlib.suppress(nats.errors.Error):
                        await service.stop()
        finally:
            self._transfers.close()

    async def _start(self, tasks: asyncio.TaskGroup) -> Service:
        service = await nats.micro.add_service(
            self._nc,
            name=self._gate.service,
            version=own_version(),
            description="Large language models: OpenAI's bodies in, its events out.",
            stats_handler=self._with_errors,
        )
        for endpoint in self._endpoints:
            await service.add_endpoint(
                name=_micro_name(endpoint),
                subject=self._gate.subject(endpoint, "*"),
                handler=self._endpoint(endpoint, tasks),
            )
        return service

    def _part_handler(self, tasks: asyncio.TaskGroup) -> Callable[[Msg], Awaitable[None]]:
        async def handle(message: Msg) -> None:
            if message.reply:
                tasks.create_task(self._serve_part(message))

        return handle

    def _endpoint(
        self, endpoint: str, tasks: asyncio.TaskGroup
    ) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            # The service waits for its handlers one after the other.
            if request._msg.reply:
                tasks.create_task(self._serve(endpoint, request._msg))

        return handle

    async def _serve(self, endpoint: str, message: Msg) -> None:
        async def answered(name: str, reply: Reply) -> int:
            headers = {key.lower(): value for key, value in (message.headers or {}).items()}
            caller = self._callers.caller(headers, "nats", nats_user=name)
            with await self._intake.read(message.data or b"{}", caller) as body:
                answer = await self._endpoints[endpoint](body, caller)
            if isinstance(answer, bytes):
                return await reply.send_body(answer, caller.unknown.headers())
            return await send_answer(answer, reply)

        await self._counted(endpoint, message, answered)

    async def _serve_part(self, message: Msg) -> None:
        async def answered(name: str, reply: Reply) -> int:
            transfer = message.subject.rpartition(".")[2]
            offset = (message.headers or {}).get(OFFSET_PARAM, "")
            await reply.send(await self._transfers.part(transfer, name, offset, message.data))
            return 200

        await self._counted("files.part", message, answered)

    async def _counted(
        self, endpoint: str, message: Msg, answered: Callable[[str, Reply], Awaitable[int]]
    ) -> None:
        """Every request that may be answered is, and is counted by its status."""
        try:
            name = self._gate.check(message.subject, message.reply)
        except InvalidRequest as exc:
            status = exc.status_code
            log_refused(exc, endpoint, "nats")
        else:
            status = await self._answer(
                endpoint, Reply(self._nc, message.reply), functools.partial(answered, name)
            )
        self._answered.labels("nats", endpoint, status).inc()
        if status >= 400:
            errors = self._errors.setdefault(_micro_name(endpoint), _Errors())
            errors.num += 1
            errors.last_status = status

    def _with_errors(self, stats: EndpointStats) -> None:
        """To the library no handler fails: each answers, and goes on beside it."""
        if (errors := self._errors.get(stats.name)) is not None:
            stats.num_errors = errors.num
            stats.last_error = str(errors.last_status)

    async def _answer(
        self, endpoint: str, reply: Reply, answered: Callable[[Reply], Awaitable[int]]
    ) -> int:
        try:
            return await answered(reply)
        except RequestError as exc:
            log_refused(exc, endpoint, "nats")
            await reply.send_error(exc, {})
            return exc.status_code
        except Exception:
            log.exception("request_failed", subject=endpoint)
            error = InternalError("The frontend could not handle the request.")
            log_refused(error, endpoint, "nats")
            await reply.send_error(error, {})
            return 500

    async def _upload(self, body: dict[str, Any], caller: Caller) -> bytes:
        return self._transfer_answer(await self._transfers.upload(body, caller))

    async def _download(self, body: dict[str, Any], caller: Caller) -> bytes:
        transfer = await self._transfers.download(convert(body, IdBody).id, caller)
        return self._transfer_answer(transfer)

    def _transfer_answer(self, transfer: Transfer) -> bytes:
        """Where the parts go to, or come from."""
        endpoint = f"{self._parts}.{transfer.name}"
        return encode_json(
            {
                "subject": self._gate.subject(endpoint, transfer.caller.nats_user),
                "bytes": transfer.num_bytes,
                "max_part_bytes": transfer.max_part_bytes,
            }
        )


def _micro_name(endpoint: str) -> str:
    """An endpoint's name may have no dot."""
    return endpoint.replace(".", "-")
