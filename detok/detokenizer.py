"""The detokenizer: owns partitions of the token log and turns their ids into text."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator

from detok.config import DetokConfig
from detok.decode_spans import DecodeSpans
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokCollector, DetokGauges, DetokStats
from detok.done_writer import DoneWriter
from detok.fence_notices import FenceNotices
from detok.lease_keeper import Lease, LeaseKeeper
from detok.live_detoks import ROLE
from detok.partition import DetokServices, Partition
from detok.text_outbox import TextOutbox
from detok.tokenizer_cache import TokenizerCache
from detok.worker_watch import WorkerWatch
from shared.cluster import Cluster
from shared.errors import BrokerUnavailable
from shared.health import Checkup
from shared.heartbeat import Heartbeat
from shared.log import get_logger
from shared.log_watch import LogWatch
from shared.model_catalog import ModelCatalog
from shared.protocol.role_cards import RoleCard
from shared.shutdown import Shutdown
from shared.subjects import new_incarnation
from shared.tracing import NO_TRACER, Tracer

_WATCH_S = 1.0
_GIVE_UP_S = 2.0

log = get_logger(__name__)


class Detokenizer:
    """Runs until `shutdown` is asked for; then gives its partitions away at once."""

    def __init__(
        self,
        cluster: Cluster,
        config: DetokConfig,
        detok_id: str | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.id = detok_id or config.detok_id or new_incarnation(ROLE)
        self.stats = DetokStats()
        self.malformed = cluster.malformed
        self.collector = DetokCollector(self.stats, self._gauges)
        self._cluster = cluster
        self.shutdown = Shutdown()
        self._partitions: dict[int, Partition] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._tokenizers = TokenizerCache(
            ModelCatalog(cluster), config.tokenizer_cache_size, self._on_tokenizer_loaded
        )
        self._outbox = TextOutbox(cluster.nc, self.id, self.stats)
        self._worker_watch = WorkerWatch(cluster, self.stats, self._running_requests)
        self._services = DetokServices(
            cluster=cluster,
            tokenizers=self._tokenizers,
            outbox=self._outbox,
            done_writer=DoneWriter(cluster, self.stats),
            spans=DecodeSpans(tracer, self.id),
            notices=FenceNotices(cluster.subjects, self._outbox, self.stats),
            worker_watch=self._worker_watch,
            stats=self.stats,
        )
        self._leases = LeaseKeeper(cluster, self.id, self._on_acquired, self._on_lost)
        self._started_at = time.time()
        self._log_watch = LogWatch(cluster, self._last_seen)
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def owned(self) -> list[int]:
        """Numbers of the partitions whose log is read to its end."""
        return sorted(p.number for p in self._partitions.values() if p.may_publish)

    def checkup(self) -> Checkup:
        """Ready: all partitions have an owner, and those of this one are read to their end.

        One that owns none is ready too, to take over from the others.
        """
        not_ready = []
        if self.shutdown.asked.is_set():
            not_ready.append("it is stopping")
        if not self._cluster.nc.is_connected:
            not_ready.append("NATS cannot be reached")
        if not self._leases.is_fresh:
            not_ready.append("the leases of the partitions cannot be read")
        elif orphans := self._leases.orphans:
            not_ready.append(f"nobody owns partitions {', '.join(map(str, orphans))}")
        if behind := [p for p in self._partitions.values() if not p.may_publish]:
            numbers = ", ".join(str(partition.number) for partition in behind)
            num_pending = sum(partition.num_pending for partition in behind)
            not_ready.append(f"partitions {numbers} catch up: {num_pending} messages are left")
        return Checkup(not_ready=tuple(not_ready))

    def _role_card(self) -> RoleCard:
        return RoleCard(
            id=self.id,
            role=ROLE,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            num_fenced=self.stats.fenced_entries,
        )

    async def run(self) -> None:
        roles = self._cluster.bucket(self._cluster.subjects.roles_bucket)
        heartbeat = Heartbeat(roles, self.id, self._role_card)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            services = [
                tasks.create_task(work)
                for work in (
                    heartbeat.run(),
                    self._outbox.run(),
                    self._tokenizers.run(),
                    self._worker_watch.run(),
                    self._watch_connection(),
                    self._log_watch.run(),
                )
            ]
            keeper = tasks.create_task(self._leases.run())
            await self.shutdown.asked.wait()
            log.info("detok_stopping", num_partitions=len(self._partitions))
            self._leases.stop()
            given_up = asyncio.Event()
            keeper.add_done_callback(lambda _: given_up.set())
            if not await self.shutdown.grace(given_up, _GIVE_UP_S):
                keeper.cancel()  # the leases expire
            for task in services:
                task.cancel()

    def _last_seen(self) -> int:
        """The last record of the log that any partition has been given."""
        return max((p.last_seen_seq for p in self._partitions.values()), default=0)

    async def _watch_connection(self) -> None:
        """A closed connection never comes back: better to be started again."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._cluster.nc.is_closed:
                raise BrokerUnavailable("the connection to NATS is closed for good")

    def _on_acquired(self, lease: Lease) -> None:
        assert self._tasks is not None
        self._on_lost(lease)
        partition = self._partitions[lease.partition] = Partition(self._services, lease)
        self._running[lease.partition] = self._tasks.create_task(partition.run())

    def _on_lost(self, lease: Lease) -> None:
        self._partitions.pop(lease.partition, None)
        task = self._running.pop(lease.partition, None)
        if task is not None:
            task.cancel()

    def _on_tokenizer_loaded(self, _tokenizer_hash: str) -> None:
        for partition in self._partitions.values():
            partition.on_tokenizer_loaded()

    def _running_requests(self) -> Iterator[DecodeStatus]:
        for partition in list(self._partitions.values()):
            if partition.may_publish:
                yield from partition.requests

    def _gauges(self) -> DetokGauges:
        partitions = list(self._partitions.values())
        return DetokGauges(
            partitions=len(partitions),
            requests_live=sum(p.num_requests for p in partitions),
            catching_up=sum(not p.is_caught_up for p in partitions),
            lag=sum(p.num_pending for p in partitions),
        )
