"""Where requests come in: over HTTP, and over NATS where there is a service."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

from frontend.assembly.frontend_side import FrontendSide
from frontend.assembly.process_parts import ProcessParts
from frontend.http.listener import Entrance, HttpServer, http_server
from frontend.nats.reply import max_body_bytes
from frontend.nats.service import NatsService
from frontend.stored.files.file_transfers import Transfers
from frontend.tenants.caller_gate import CallerGate


class Transports:
    """They are opened once, and lead to one side at a time."""

    def __init__(
        self,
        listener: socket.socket,
        entrance: Entrance,
        server: HttpServer,
        service: NatsService | None,
    ) -> None:
        self._listener = listener
        self._entrance = entrance
        self.server = server
        self.service = service

    @classmethod
    def of(cls, process: ProcessParts, side: FrontendSide) -> Self:
        """The transports that lead to this side."""
        entrance = Entrance(side.app, side.inference.admission.overload)
        server = http_server(entrance, entrance.refusal)
        return cls(process.listener, entrance, server, _nats_service(process, side))

    def lead_to(self, side: FrontendSide) -> None:
        """What comes in from now on; what came in before is answered where it is."""
        self._entrance.lead_to(side.app, side.inference.admission.overload)
        if self.service is not None:
            self.service.lead_to(side.nats_handlers, side.stored.files)

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        """Returns when both serve."""
        tasks.create_task(self.server.serve([self._listener]))
        if self.service is not None:
            tasks.create_task(self.service.run())
            await self.service.started.wait()

    def refuse_more(self) -> None:
        """Take nothing more over NATS. HTTP goes on, and answers 503 where it has to."""
        if self.service is not None:
            self.service.stop()

    def close(self) -> None:
        """No answer is open any more."""
        self.server.should_exit = True


def _nats_service(process: ProcessParts, side: FrontendSide) -> NatsService | None:
    config, nc = process.config, process.service_nc
    if nc is None:
        return None
    subjects = side.streams.cluster.subjects
    return NatsService(
        nc,
        CallerGate(config.service_name, subjects, config.nats_callers),
        process.frontend_id,
        side.nats_handlers,
        Transfers(side.stored.files, max_body_bytes(nc)),
        process.callers,
        process.intake,
        process.metrics.requests,
    )
