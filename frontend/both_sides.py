"""The streams that a frontend serves: one set of them, or two while the service moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend.assembly.background import run_all
from frontend.assembly.frontend_side import FrontendSide
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.assembly.transports import Transports
from frontend.config import FrontendConfig
from frontend.inference.inference import Inference
from shared.cluster import open_cluster
from shared.errors import BrokerError
from shared.event_wait import wait_event
from shared.liveness.move_watch import MoveWatch, newer_side
from shared.service.move import settle_closed_queue
from shared.telemetry.log import get_logger

_RETRY_S = 1.0
_AT_START_S = 30.0  # for the newer side, where a service moves: without it some are not found

log = get_logger(__name__)


class BothSides:
    """Opens the newer side once a move is announced, goes over when the older queue is closed, and
    lets go of the older side when its streams are about to be deleted.
    """

    def __init__(
        self,
        process: ProcessParts,
        first: FrontendSide,
        move: MoveWatch,
        inference: Inference,
        transports: Transports,
    ) -> None:
        self._process = process
        self._first = first
        self.move = move
        self._inference = inference
        self._transports = transports
        self.all = [first]  # the older first
        self.knows_newer = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self._process.metrics.registry.register(self._first.cluster.queue_metrics)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            older = [*self._run_side(tasks, self._first), *run_all(tasks, [self.move])]
            await self.move.over.wait()
            await self._inference.gone_over.wait()
            self._forget_older()
            for task in older:
                task.cancel()

    async def settle(self) -> None:
        """Who comes to a service that moves serves both sides from the beginning."""
        await self.move.look()
        if self.move.announced.is_set():
            is_closed = self.move.closed.is_set()
            waited = self._inference.gone_over if is_closed else self.knows_newer
            if not await wait_event(waited, _AT_START_S):
                log.error("newer_streams_not_served", waited_s=_AT_START_S)

    def _run_side(self, tasks: asyncio.TaskGroup, side: FrontendSide) -> list[asyncio.Task[None]]:
        outdated = side.streams.cluster.level.outdated
        leaving = tasks.create_task(self._process.shutdown.ask_when(outdated))
        return [leaving, *run_all(tasks, side.background)]

    async def _follow(self) -> None:
        async with (
            newer_side(self.move, self._process.config, self._opened) as newer,
            asyncio.TaskGroup() as tasks,
        ):
            self._run_side(tasks, newer)
            await newer.streams.models.refresh()
            self.all.append(newer)
            self._inference.know(newer.inference.side)
            self.knows_newer.set()
            await self.move.closed.wait()
            await self._settle_queue()
            self._go_over(newer)

    async def _settle_queue(self) -> None:
        """Waits until it takes nothing, and what it took before is stored and can be found."""
        cluster = self._first.streams.cluster
        while not self.move.over.is_set():
            try:
                if await settle_closed_queue(cluster.js, cluster.subjects):
                    return
            except BrokerError as exc:
                log.warning("old_queue_not_settled", error=str(exc))
            await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def _opened(self, config: FrontendConfig) -> AsyncIterator[FrontendSide]:
        process, older = self._process, self._first.as_older()
        async with open_cluster(config, process.frontend_id) as cluster:
            streams = StreamParts.of(process, cluster, older)
            parts = InferenceParts.of(process, streams)
            newer = FrontendSide.of(process, streams, parts, self._inference, older)
            await newer.begin()
            yield newer

    def _go_over(self, newer: FrontendSide) -> None:
        """The older queue is closed."""
        self._inference.go_over()
        self._transports.lead_to(newer)
        registry = self._process.metrics.registry
        registry.unregister(self._first.cluster.queue_metrics)
        registry.register(newer.cluster.queue_metrics)
        log.info("gone_over", prefix=newer.streams.cluster.subjects.prefix)

    def _forget_older(self) -> None:
        """Nothing is left there."""
        for side in self.all[1:]:
            side.forget_older()
        self._inference.forget_older()
