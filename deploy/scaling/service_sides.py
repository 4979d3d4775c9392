"""The streams of the service that a supervisor works for: one set, or two while it moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from shared.broker.kv_bucket import readable
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.liveness.move_watch import MoveWatch, newer_side
from shared.protocol.role_cards import WorkerCard

Work = Callable[[Cluster], Coroutine[Any, Any, None]]


class ServiceSides:
    """`clusters` has the oldest side first. Each stays until its streams are about to be deleted:
    requests, and workers of this host, may be on either.
    """

    def __init__(self, first: Cluster) -> None:
        self.clusters: tuple[Cluster, ...] = (first,)
        self.settled = asyncio.Event()  # all sides that there were at the start are known
        self._move = MoveWatch(first)
        self._changed = asyncio.Event()

    @property
    def oldest(self) -> Cluster:
        return self.clusters[0]

    async def run(self, config: ClusterConfig, name: str, prepare: Work) -> None:
        """Follow a move until cancelled; `prepare` makes ready what a newer side needs."""
        await self._move.look()
        if not self._move.announced.is_set():
            self.settled.set()
        watching = asyncio.create_task(self._move.run())
        try:
            async with newer_side(
                self._move, config, lambda there: _prepared(there, name, prepare)
            ) as newer:
                self._use(*self.clusters, newer)
                self.settled.set()
                await self._move.over.wait()
                self._use(newer)
                await asyncio.Event().wait()
        finally:
            watching.cancel()

    async def on_each(self, work: Work) -> None:
        """Run it on each side for as long as that is there, until cancelled."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                there = {each.subjects.prefix: each for each in self.clusters}
                for prefix in running.keys() - there.keys():
                    running.pop(prefix).cancel()
                for prefix in there.keys() - running.keys():
                    running[prefix] = tasks.create_task(work(there[prefix]))
                self._changed.clear()
                await self._changed.wait()

    async def worker_cards(self) -> list[WorkerCard]:
        """The cards of the workers of all sides. Raises BrokerError."""
        return [
            card
            for each in self.clusters
            for card in readable(
                WorkerCard, await each.bucket(each.subjects.workers_bucket).entries()
            )
        ]

    def _use(self, *clusters: Cluster) -> None:
        self.clusters = clusters
        self._changed.set()


@asynccontextmanager
async def _prepared(config: ClusterConfig, name: str, prepare: Work) -> AsyncIterator[Cluster]:
    async with open_cluster(config, name) as cluster:
        await prepare(cluster)
        yield cluster
