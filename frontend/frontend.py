"""One frontend process: how it opens, serves and drains."""

from __future__ import annotations

import asyncio
import time

from frontend.assembly.background import run_all
from frontend.assembly.frontend_side import FrontendSide
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.assembly.transports import Transports
from frontend.both_sides import BothSides
from frontend.inference.inference import Inference
from shared.cluster import Cluster
from shared.liveness.move_watch import MoveWatch
from shared.telemetry.log import get_logger

log = get_logger(__name__)


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
