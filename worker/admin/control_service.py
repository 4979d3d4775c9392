"""Where operators reach a worker: requests on two subjects, one answer each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.admin.control import (
    ControlReply,
    ControlRequest,
    Kill,
    decode_control_request,
    encode_control,
)
from shared.broker.named_subjects import NamedSubjects
from shared.cluster import Cluster
from shared.errors import JetflockError, ProtocolError
from shared.telemetry.log import get_logger

log = get_logger(__name__)

_LAST_WORD_S = 1.0

ControlHandler = Callable[[ControlRequest], Awaitable[ControlReply]]


class ControlService:
    """Reads what comes for one worker, and answers all of it: also what it cannot read."""

    def __init__(
        self, cluster: Cluster, subjects: tuple[str, ...], worker_id: str, handle: ControlHandler
    ) -> None:
        self._nc = cluster.nc
        self._malformed = cluster.malformed
        self._named = NamedSubjects(cluster.subjects)
        self._subjects = subjects
        self._worker_id = worker_id
        self._handle = handle

    async def run(self) -> None:
        """Until cancelled."""
        async with AsyncExitStack() as subscriptions, asyncio.TaskGroup() as tasks:

            async def on_message(message: Msg) -> None:
                tasks.create_task(self._answer(message))

            for subject in self._subjects:
                subscription = await self._nc.subscribe(subject, cb=on_message)
                subscriptions.push_async_callback(_unsubscribe, subscription.unsubscribe)
            await asyncio.Event().wait()

    async def _answer(self, message: Msg) -> None:
        try:
            request = decode_control_request(message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.warning("control_unreadable", num_bytes=len(message.data))
            why = f"the request cannot be read: {exc}"
            await self._publish(message, ControlReply(self._worker_id, False, why))
            return
        if isinstance(request, Kill):  # it waits for no other order: those may hang
            await self._die(message)
        await self._publish(message, await self._reply(request))

    async def _publish(self, message: Msg, reply: ControlReply) -> None:
        if self._named.is_role_inbox(message.reply):
            with contextlib.suppress(NatsError):
                await self._nc.publish(message.reply, encode_control(reply))

    async def _die(self, message: Msg) -> None:
        """The kernel kills the engine with us."""
        log.warning("killed_by_order")
        await self._publish(message, ControlReply(self._worker_id, True))
        with contextlib.suppress(NatsError, TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await self._nc.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    async def _reply(self, request: ControlRequest) -> ControlReply:
        try:
            reply = await self._handle(request)
        except (JetflockError, NatsError) as exc:
            reply = ControlReply(self._worker_id, False, str(exc))
        log.info("control", verb=type(request).__name__, ok=reply.ok, message=reply.message)
        return reply


async def _unsubscribe(unsubscribe: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(NatsError):
        await unsubscribe()
