"""The detokenizer: owns partitions of the token log and turns their ids into text."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from detok.config import DetokConfig
from detok.decode_spans import DecodeSpans
from detok.detok_stats import DetokCollector, DetokGauges, DetokStats
from detok.done_writer import DoneWriter
from detok.fence_notices import FenceNotices
from detok.lease import Tenure
from detok.level_raiser import LevelRaiser
from detok.partition import DetokServices, Partition
from detok.partition_share import PartitionShare
from detok.text_outbox import TextOutbox
from detok.tokenizer_cache import TokenizerCache
from detok.worker_watch import Holders, WorkerWatch
from shared.broker.named_subjects import NamedSubjects
from shared.broker.text_readers import TextReaders
from shared.catalog.model_catalog import ModelCatalog
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster
from shared.errors import BrokerUnavailable
from shared.event_wait import beat_s
from shared.failover.server_watch import CUT_OFF
from shared.liveness.heartbeat import Heartbeat
from shared.liveness.log_watch import LogMark, LogWatch
from shared.protocol.role_cards import RoleCard
from shared.status.health import Checkup
from shared.subjects import new_incarnation
from shared.telemetry.log import get_logger
from shared.telemetry.tracing import NO_TRACER, Tracer

ROLE = "detok"
_WATCH_S = 1.0
GIVE_UP_S = 2.0
_LINGER_S = 10.0  # what a lost partition is still read for: it may come back

log = get_logger(__name__)


class Detokenizer:
    """Runs until `shutdown` is asked for; then gives its partitions away at once."""

    def __init__(
        self,
        cluster: Cluster,
        config: DetokConfig,
        detok_id: str | None = None,
        tracer: Tracer = NO_TRACER,
        readers: TextReaders | None = None,
    ) -> None:
        """`readers` are those of this process."""
        self.id = detok_id or config.detok_id or new_incarnation(ROLE)
        self.stats = DetokStats()
        self.malformed = cluster.malformed
        self.collector = DetokCollector(self.stats, self._gauges)
        self._cluster = cluster
        self.shutdown = Shutdown()
        self._partitions: dict[int, Partition] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._tokenizers = TokenizerCache(
            ModelCatalog(cluster), config.tokenizer_cache_size, lambda _: self._publish_rest()
        )
        self._outbox = TextOutbox(
            cluster.nc,
            self.id,
            self.stats,
            NamedSubjects(cluster.subjects),
            TextReaders() if readers is None else readers,
        )
        self._worker_watch = WorkerWatch(cluster, self.stats, self._holders)
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
        self._share = PartitionShare(
            cluster, self.id, self._on_acquired, self._on_lost, self._publish_rest
        )
        cluster.reconnects.follow(self._on_reconnect)
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
        elif self._cluster.server.is_cut_off:
            not_ready.append(CUT_OFF)
        if not self._share.is_fresh:
            not_ready.append("the leases of the partitions cannot be read")
        elif orphans := self._share.orphans:
            not_ready.append(f"nobody owns partitions {', '.join(map(str, orphans))}")
        if behind := [p for p in self._owned_partitions() if not p.is_caught_up]:
            numbers = ", ".join(str(partition.number) for partition in behind)
            num_pending = sum(partition.num_pending for partition in behind)
            not_ready.append(f"partitions {numbers} catch up: {num_pending} messages are left")
        return Checkup(not_ready=tuple(not_ready))

    def _owned_partitions(self) -> list[Partition]:
        """Without those that are only read on."""
        return [p for p in self._partitions.values() if not p.tenure.is_over]

    def _role_card(self) -> RoleCard:
        return RoleCard(
            id=self.id,
            role=ROLE,
            level=self._cluster.level.known,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            num_fenced=self.stats.fenced_entries,
        )

    async def run(self) -> None:
        """Until asked to stop. Raises OutdatedBuild when that was why."""
        roles = self._cluster.bucket(self._cluster.subjects.roles_bucket)
        heartbeat = Heartbeat(roles, self.id, self._role_card)
        seen = (heartbeat.writability, self._worker_watch.writability)
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
                    LevelRaiser(self._cluster, self.id, seen).run(),
                    self.shutdown.ask_when(self._cluster.level.outdated),
                )
            ]
            sharing = tasks.create_task(self._share.run())
            await self.shutdown.asked.wait()
            log.info("detok_stopping", num_partitions=len(self._owned_partitions()))
            self._share.stop()
            given_up = asyncio.Event()
            sharing.add_done_callback(lambda _: given_up.set())
            if not await self.shutdown.grace(given_up, GIVE_UP_S):
                sharing.cancel()  # the lease expires
            for task in (*services, *self._running.values()):
                task.cancel()
        self._cluster.level.check()

    def _last_seen(self) -> LogMark:
        """The last record of the log that any partition has been given."""
        marks = (partition.last_seen for partition in self._partitions.values())
        return max(marks, key=lambda mark: mark.seq, default=LogMark(0))

    async def _watch_connection(self) -> None:
        """A closed connection never comes back: better to be started again."""
        while True:
            await asyncio.sleep(beat_s(_WATCH_S))
            if self._cluster.nc.is_closed:
                raise BrokerUnavailable("the connection to NATS is closed for good")

    async def _on_reconnect(self) -> None:
        for partition in self._partitions.values():
            partition.on_reconnect()

    def _on_acquired(self, tenure: Tenure) -> None:
        assert self._tasks is not None
        number = tenure.partition
        if (partition := self._partitions.get(number)) is not None:
            partition.tenure = tenure
            partition.publish_rest()
            return
        partition = self._partitions[number] = Partition(self._services, tenure)
        self._running[number] = self._tasks.create_task(partition.run())

    def _on_lost(self, tenure: Tenure) -> None:
        asyncio.get_running_loop().call_later(_LINGER_S, self._drop, tenure)

    def _drop(self, tenure: Tenure) -> None:
        partition = self._partitions.get(tenure.partition)
        if partition is not None and partition.tenure is tenure:
            del self._partitions[tenure.partition]
            self._running.pop(tenure.partition).cancel()

    def _publish_rest(self) -> None:
        for partition in self._partitions.values():
            partition.publish_rest()

    def _holders(self) -> list[Holders]:
        return [each.holders for each in self._partitions.values() if each.may_publish]

    def _gauges(self) -> DetokGauges:
        partitions = self._owned_partitions()
        return DetokGauges(
            partitions=len(partitions),
            requests_live=sum(p.num_requests for p in partitions),
            catching_up=sum(not p.is_caught_up for p in partitions),
            lag=sum(p.num_pending for p in partitions),
        )
