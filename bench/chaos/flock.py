"""All processes of a chaos run: each role several times, under a supervisor, behind a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from bench.chaos.broker import Broker
from bench.chaos.broker_cluster import BrokerCluster
from bench.chaos.brokers import Brokers, url_of
from bench.chaos.cases import MODEL_NAME
from bench.chaos.member import Member
from bench.chaos.nats_link import NatsLink
from bench.chaos.role import HOOKS_VARIABLE
from bench.chaos.work_meter import WorkMeter
from deploy.local.heralds import DetokHerald, WorkerHerald
from deploy.local.http_probe import answers_ok
from deploy.local.ports import free_port
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.serve_config import ServeConfig, demo_model
from deploy.processes.kept_process import KeptProcess, Launch
from deploy.scaling.service_sides import ServiceSides
from detok.owner_table import OwnerTable
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.protocol.codec import decode
from shared.protocol.log_records import Claim
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import WorkerCard, WorkerRole, WorkerState

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 6.0
_ROLES = ("frontend", "detok", "worker")


@dataclass(frozen=True, slots=True)
class FlockPlan:
    """How many of each, and what is wrong with them."""

    num_servers: Literal[1, 3] = 1  # nats-servers, and copies of each stream
    num_frontends: int = 2
    num_detoks: int = 2
    num_workers: int = 2
    num_decode_workers: int = 0  # of them; the others compute prompts
    has_transfer: bool = False  # keys and values go between them over TCP, not by a folder
    ack_wait_s: float = 4.0
    max_running: int = 128  # requests that one worker runs at a time
    announces_deaths: bool = True  # otherwise a supervisor starts another one, and says nothing
    hooks: tuple[str, ...] = ("divergent", "poison")

    @property
    def num_slots(self) -> int:
        """Requests that run at a time."""
        return self.num_workers * self.max_running


class Flock:
    """The nats-servers, roles around them, and the suite's own connection."""

    def __init__(self, folder: Path, store: Path, plan: FlockPlan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self._folder = folder
        self._exits = AsyncExitStack()
        self._logs: dict[str, TextIO] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.brokers: Brokers = (
            Broker.alone(folder, store, self._sink("nats"))
            if plan.num_servers == 1
            else BrokerCluster(folder, store, self._sink)
        )
        self.members: list[Member] = []
        self.work = WorkMeter()
        self.sides: ServiceSides
        self.card: ModelCard

    async def __aenter__(self) -> Flock:
        self._exits.push_async_callback(self.brokers.kill)
        await self.brokers.start()
        config = ClusterConfig(
            nats_url=url_of(self.brokers),
            replicas=self.plan.num_servers,
            log_max_bytes=1 << 29,  # a cluster's servers have room for both sides of a move
            files_max_bytes=1 << 28,
            bills_ttl_s=86_400.0,
            bills_max_bytes=1 << 26,
        )
        first = await self._exits.enter_async_context(open_cluster(config, "chaos"))
        files = ModelFiles.read(Path(demo_model()))
        self.card = await ModelCatalog(first).register(files, MODEL_NAME)
        self.sides = ServiceSides(first)
        self._tasks["sides"] = asyncio.create_task(self.sides.run(config, "chaos", _as_copied))
        plan = self.plan
        for role, count in zip(
            _ROLES, (plan.num_frontends, plan.num_detoks, plan.num_workers), strict=True
        ):
            for idx in range(count):
                self.members.append(await self._member(role, idx))
        for member in self.members:
            self.start(member)
        await self.wait_ready()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for member in self.members:
            member.signal(signal.SIGCONT, with_engine=True)
        for member in self.members:
            member.kept.kill()
        self._tasks["sides"].cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._exits.aclose()
        for log in self._logs.values():
            log.close()

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

    @property
    def cluster(self) -> Cluster:
        """That of the newer side, where the service moves."""
        return self.sides.clusters[-1]

    @property
    def http_ports(self) -> list[int]:
        """Of the frontends."""
        return [member.http_port for member in self.of("frontend")]

    def start(self, member: Member) -> None:
        """Run it until `stop`."""
        self._tasks[member.name] = asyncio.create_task(member.kept.run())
        member.kept.mark_ready()  # whatever it dies of, it is started again

    async def stop(self, member: Member) -> None:
        """SIGTERM, and no other one; `restart` undoes it."""
        await self.work.read(member)
        await member.kept.stop(_STOP_TIMEOUT_S)
        await self._tasks[member.name]

    def restart(self, member: Member) -> None:
        """After `stop`."""
        idx = int(member.name.rpartition("-")[2])
        member.kept = self._kept(member.role, idx, member.link.url, member.http_port)
        self.start(member)

    async def wait_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> float:
        """Until every process can work; the seconds that it took."""
        started = time.monotonic()
        while not await self._is_ready():
            if time.monotonic() > started + timeout_s:
                raise TimeoutError(f"the flock is not ready; its logs are in {self._folder}")
            await asyncio.sleep(0.1)
        return time.monotonic() - started

    async def num_queued(self) -> int:
        """Requests that the queues hold, waiting or running."""
        num_queued = 0
        for each in self.sides.clusters:
            info = await each.js.api(f"STREAM.INFO.{each.subjects.requests_stream}")
            num_queued += int(info["state"]["messages"])
        return num_queued

    async def holders(self, rids: Collection[str]) -> dict[str, str]:
        """Which worker incarnation has claimed which request."""

        async def holder(rid: str) -> tuple[str, str]:
            for each in self.sides.clusters:
                if (last := await each.ownership.last(rid)) is not None:
                    return rid, last.record.worker if isinstance(last.record, Claim) else ""
            return rid, ""

        with contextlib.suppress(BrokerError):
            return dict(await asyncio.gather(*map(holder, rids)))
        return {}

    async def readers(self, rids: Collection[str]) -> dict[str, str]:
        """Which detokenizer reads the partition of which request, where that has been claimed."""
        found: dict[str, str] = {}
        for each in self.sides.clusters:
            owners = await _partition_owners(each)
            lasts = await asyncio.gather(*map(each.ownership.last, rids))
            found |= {
                rid: owners.get(each.subjects.partition(rid), "")
                for rid, last in zip(rids, lasts, strict=True)
                if last is not None
            }
        return found

    async def _member(self, role: str, idx: int) -> Member:
        ports = [server.port for server in self.brokers.servers]
        link = await self._exits.enter_async_context(NatsLink.open(ports))
        port = free_port()
        return Member(role, link, self._kept(role, idx, link.url, port), port)

    def _kv_disk_dir(self, worker: str) -> str:
        return str(self._folder / (f"kv-{worker}" if self.plan.has_transfer else "kv"))

    def _kept(self, role: str, idx: int, nats_url: str, http_port: int) -> KeptProcess:
        name = f"{role}-{idx}"
        programs = RolePrograms(**{each: self._program(each) for each in _ROLES})
        config = ServeConfig(
            nats_url=nats_url,
            replicas=self.plan.num_servers,
            port=http_port,
            metrics_port=http_port - 1 - idx if role == "worker" else 0,  # the launch adds it
            detok_id=name,
            model_name=MODEL_NAME,
            dtype="float32",
            num_threads=1,
            max_running=self.plan.max_running,
            kv_disk_dir=self._kv_disk_dir(name) if self.plan.num_decode_workers else None,
            kv_transfer_bind="127.0.0.1:0" if self.plan.has_transfer else None,
            ack_wait_s=self.plan.ack_wait_s,
            ping_interval_s=1.0,
        )
        environ = {**os.environ, HOOKS_VARIABLE: " ".join(self.plan.hooks)}
        launches = RoleLaunches(config, Path(demo_model()), "json", programs, environ)
        make: Callable[[], Launch] = {
            "frontend": launches.frontend,
            "detok": launches.detok,
            "worker": launches.worker(idx, self._worker_role(idx)),
        }[role]
        on_death = {
            "worker": WorkerHerald(self.sides, self.card).announce_death,
            "detok": DetokHerald(self.sides).announce_death,
        }
        say = self._sink("supervisor")
        announce = on_death.get(role) if self.plan.announces_deaths else None
        return KeptProcess(name, make, self._sink(name), say, announce)

    def _worker_role(self, idx: int) -> WorkerRole:
        if not self.plan.num_decode_workers:
            return "both"
        return "decode" if idx < self.plan.num_decode_workers else "prefill"

    def _program(self, role: str) -> list[str]:
        return [sys.executable, "-m", "bench.chaos.role", role]

    def _sink(self, name: str) -> Callable[[str], None]:
        log = self._logs.setdefault(name, (self._folder / f"{name}.log").open("a"))

        def write(line: str) -> None:
            log.write(line + "\n")
            log.flush()

        return write

    async def _is_ready(self) -> bool:
        if not await self.brokers.is_whole():
            return False
        for port in self.http_ports:
            if not await answers_ok("127.0.0.1", port, "/ready"):
                return False
        try:
            return await self._are_workers_ready() and await self._are_partitions_owned()
        except BrokerError:
            return False

    async def _are_workers_ready(self) -> bool:
        names = [f"{self.card.pool}.{member.incarnation}" for member in self.of("worker")]
        buckets = [each.bucket(each.subjects.workers_bucket) for each in self.sides.clusters]
        entries = [await bucket.get(name) for bucket in buckets for name in names]
        cards = [decode(WorkerCard, entry.value) for entry in entries if entry is not None]
        return [card.state for card in cards] == [WorkerState.READY] * self.plan.num_workers

    async def _are_partitions_owned(self) -> bool:
        for each in self.sides.clusters:
            owners = await _partition_owners(each)
            if len([owner for owner in owners.values() if owner]) != each.subjects.num_partitions:
                return False
        return True


async def _partition_owners(cluster: Cluster) -> dict[int, str]:
    """Which detokenizer holds the lease of which partition."""
    return await OwnerTable(cluster.js, cluster.subjects).holders()


async def _as_copied(_cluster: Cluster) -> None:
    """`jetflock migrate` has copied the model's card, which is all that the roles need."""
