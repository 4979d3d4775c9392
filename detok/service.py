"""One detokenizer's service: of one set of streams, or of two while it moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from detok.config import DetokConfig
from detok.detokenizer import GIVE_UP_S, Detokenizer
from shared.broker.text_readers import TextReaders
from shared.cli.garbage import settle_garbage
from shared.cluster import Cluster, open_cluster
from shared.liveness.move_watch import MoveWatch, newer_side
from shared.service.move import oldest_prefix
from shared.status.health import Checkup, HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.metrics import new_registry
from shared.telemetry.startup_phases import StartupPhases
from shared.telemetry.tracing import Tracer


async def serve(
    config: DetokConfig,
    detok_id: str,
    tracer: Tracer,
    *,
    until: asyncio.Event | None = None,
    readers: TextReaders | None = None,
) -> None:
    """Run one until SIGTERM or SIGINT; in a process that has other work, until the event is set.

    `readers` are those of this process. Raises ConfigError.
    """
    registry, board, startup = new_registry("detok"), HealthBoard(), StartupPhases()
    readers = TextReaders() if readers is None else readers
    registry.register(startup)
    startup.note_process()
    startup.enter("connect")
    async with (
        serving_status(registry, board, StatusAddress.of(config)),
        open_cluster(config, detok_id, registry=registry, choose=oldest_prefix) as cluster,
    ):
        startup.enter("catch up")
        detokenizer = Detokenizer(cluster, config, detok_id, tracer, readers)
        sides = BothSides(detokenizer, cluster, config, registry, tracer, readers)
        settle_garbage()

        def look() -> Checkup:
            checkup = sides.checkup()
            if not checkup.not_ready:
                startup.end()
            return checkup

        board.watch(look)
        beside = [asyncio.create_task(LoopWatch(registry).run())]
        if until is None:
            detokenizer.shutdown.listen(lambda: GIVE_UP_S)
        else:
            beside.append(asyncio.create_task(detokenizer.shutdown.ask_when(until)))
        try:
            await sides.run()
        finally:
            for task in beside:
                task.cancel()


class BothSides:
    """A process of a service that moves: it has one detokenizer for each side.

    Runs `first` until it is asked to stop; and another one on the streams that it moves to, from
    the moment when these are announced.
    """

    def __init__(
        self,
        first: Detokenizer,
        cluster: Cluster,
        config: DetokConfig,
        registry: CollectorRegistry,
        tracer: Tracer,
        readers: TextReaders,
    ) -> None:
        self._first = first
        self._config = config
        self._registry = registry
        self._tracer = tracer
        self._readers = readers
        self._move = MoveWatch(cluster)
        self._second: Detokenizer | None = None
        registry.register(first.collector)

    def checkup(self) -> Checkup:
        """Ready: both are."""
        sides = [self._first] if self._second is None else [self._first, self._second]
        if self._move.over.is_set():
            sides = sides[1:]
        return Checkup(not_ready=tuple(why for side in sides for why in side.checkup().not_ready))

    async def run(self) -> None:
        """Raises OutdatedBuild when that was why it stopped."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._move.run())
            following = tasks.create_task(self._follow())
            first = tasks.create_task(self._run_first())
            await self._first.shutdown.asked.wait()
            if self._second is None:
                following.cancel()
            else:
                self._second.shutdown.ask()
            watching.cancel()
            await first

    async def _run_first(self) -> None:
        running = asyncio.create_task(self._first.run())
        over = asyncio.create_task(self._move.over.wait())
        try:
            await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not running.done():
                running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _follow(self) -> None:
        async with newer_side(self._move, self._config, self._opened) as second:
            self._second = second
            if self._first.shutdown.asked.is_set():
                return
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(second.run())
                showing = tasks.create_task(self._show_second(second))
                await running
                showing.cancel()

    @contextlib.asynccontextmanager
    async def _opened(self, config: DetokConfig) -> AsyncIterator[Detokenizer]:
        async with open_cluster(config, self._first.id) as cluster:
            yield Detokenizer(cluster, config, self._first.id, self._tracer, self._readers)

    async def _show_second(self, second: Detokenizer) -> None:
        """In the metrics, from the moment when it has the new requests."""
        await self._move.closed.wait()
        self._registry.unregister(self._first.collector)
        self._registry.register(second.collector)
