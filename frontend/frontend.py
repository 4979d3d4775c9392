"""One frontend process: how it opens, serves and drains."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from frontend.assembly.background import run_all
from frontend.assembly.frontend_side import FrontendSide
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.assembly.transports import Transports
from frontend.both_sides import BothSides
from frontend.config import ROLE, FrontendConfig
from frontend.inference.inference import Inference
from frontend.metrics import FrontendMetrics
from shared.broker.text_readers import TextReaders
from shared.cli.garbage import settle_garbage
from shared.cluster import Cluster, open_cluster
from shared.failover.companion_connection import companion_connection
from shared.liveness.move_watch import MoveWatch
from shared.service.move import oldest_prefix
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import new_registry
from shared.telemetry.tracing import Tracer

log = get_logger(__name__)
_SERVICE_ROLE = "service"  # of the user on the connection where callers are heard, and of its inbox


class Frontend:
    """`run` serves until `shutdown` is asked for."""

    def __init__(self, process: ProcessParts, cluster: Cluster) -> None:
        """`cluster` is the older side, where a service moves."""
        none = OlderParts()
        streams = StreamParts.of(process, cluster, none)
        parts = InferenceParts.of(process, streams)
        move = MoveWatch(cluster)
        self.process = process
        self.shutdown = process.shutdown
        self.started = asyncio.Event()
        self.inference = Inference(parts.side, move.look_soon)
        self.side = FrontendSide.of(process, streams, parts, self.inference, none)
        self.transports = Transports.of(process, self.side)
        self.sides = BothSides(process, self.side, move, self.inference, self.transports)

    async def run(self) -> None:
        """Serve until asked to stop, then drain.

        Raises OutdatedBuild when that was why, or ConfigError when it may not do its work.
        """
        await self.side.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                background = run_all(tasks, [*self.process.background, self.sides])
                await self._open(tasks)
                await self.shutdown.asked.wait()
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self.process.close()
        for side in self.sides.all:
            side.streams.cluster.level.check()

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        await self.sides.settle()
        await self.transports.open(tasks)
        self.started.set()
        self.process.metrics.startup.end()
        host, port = self.process.config.host, self.process.port
        log.info("frontend_listening", host=host, port=port)

    async def _drain(self) -> None:
        """Answer 503, let running streams finish, close the rest: clients resume elsewhere."""
        self.inference.is_draining = True
        self.transports.refuse_more()
        sides = list(self.sides.all)
        for side in sides:
            await side.stored.batch_keeper.stop()
        answers = [side.inference.ends.answers for side in sides]
        log.info("frontend_drains", running=sum(each.num_open for each in answers))
        deadline = time.monotonic() + self.process.config.shutdown_timeout_s
        for each in answers:
            left_s = max(0.0, deadline - time.monotonic())
            await self.shutdown.grace(each.all_closed, left_s)
        log.info("frontend_stops", cut=sum(each.num_open for each in answers))
        for each in answers:
            each.cut_all()
        self.transports.close()
        for side in sides:
            await side.inference.ends.terminator.close()


async def serve(
    config: FrontendConfig,
    frontend_id: str,
    listener: socket.socket,
    tracer: Tracer,
    readers: TextReaders | None = None,
) -> None:
    """Run one frontend until SIGTERM or SIGINT. It is added to the `readers` of this process."""
    metrics = FrontendMetrics(new_registry(ROLE))
    metrics.startup.note_process()
    metrics.startup.enter("connect")
    async with (
        open_cluster(
            config, frontend_id, registry=metrics.registry, choose=oldest_prefix
        ) as cluster,
        service_connection(config, frontend_id, cluster.nc) as service_nc,
    ):
        metrics.startup.enter("start service")
        process = ProcessParts.of(
            config, frontend_id, listener, service_nc, metrics, tracer, readers
        )
        frontend = Frontend(process, cluster)
        frontend.shutdown.listen(lambda: config.shutdown_timeout_s)
        settle_garbage()
        await frontend.run()


@asynccontextmanager
async def service_connection(
    config: FrontendConfig, frontend_id: str, main: Client
) -> AsyncIterator[Client | None]:
    """Where callers over NATS are heard and answered, apart from all else.

    None without a service. Raises ConfigError.
    """
    if not config.service_name:
        yield None
        return
    login = config.service_login()
    async with companion_connection(config, frontend_id, _SERVICE_ROLE, login, main) as nc:
        yield nc
