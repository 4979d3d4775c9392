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
from typing import TextIO

from bench.chaos.broker import Broker
from bench.chaos.cases import MODEL_NAME
from bench.chaos.member import Member
from bench.chaos.role import HOOKS_VARIABLE
from bench.chaos.tcp_proxy import TcpProxy
from bench.chaos.work_meter import WorkMeter
from deploy.local.detok_herald import DetokHerald
from deploy.local.http_probe import answers_ok
from deploy.local.kept_process import KeptProcess, Launch
from deploy.local.ports import free_port
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.serve_config import ServeConfig, demo_model
from deploy.local.worker_herald import WorkerHerald
from shared.cluster import Cluster, open_cluster
from shared.codec import decode
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles
from shared.protocol.log_records import Claim
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import WorkerCard, WorkerState

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 6.0
_ROLES = ("frontend", "detok", "worker")


@dataclass(frozen=True, slots=True)
class FlockPlan:
    """How many of each, and what is wrong with them."""

    num_frontends: int = 2
    num_detoks: int = 2
    num_workers: int = 2
    ack_wait_s: float = 4.0
    max_running: int = 128
    hooks: tuple[str, ...] = ("divergent", "poison")


class Flock:
    """A nats-server, roles around it, and the suite's own connection."""

    def __init__(self, folder: Path, store: Path, plan: FlockPlan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self._folder = folder
        self._exits = AsyncExitStack()
        self._logs: dict[str, TextIO] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.broker = Broker(folder, store, self._sink("nats"))
        self.members: list[Member] = []
        self.work = WorkMeter()
        self.cluster: Cluster
        self.card: ModelCard

    async def __aenter__(self) -> Flock:
        await self.broker.start()
        self._exits.push_async_callback(self.broker.kill)
        config = ClusterConfig(nats_url=self.broker.url)
        self.cluster = await self._exits.enter_async_context(open_cluster(config, "chaos"))
        files = ModelFiles.read(Path(demo_model()))
        self.card = await ModelCatalog(self.cluster).register(files, MODEL_NAME)
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
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.broker.resume()
        await self._exits.aclose()
        for log in self._logs.values():
            log.close()

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

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
        member.kept = self._kept(member.role, member.name, member.proxy.port, member.http_port)
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
        """Requests that the queue holds, waiting or running."""
        info = await self.cluster.js.api(f"STREAM.INFO.{self.cluster.subjects.requests_stream}")
        return int(info["state"]["messages"])

    async def holders(self, rids: Collection[str]) -> dict[str, str]:
        """Which worker incarnation has claimed which request."""

        async def holder(rid: str) -> tuple[str, str]:
            last = await self.cluster.ownership.last(rid)
            record = None if last is None else last.record
            return rid, record.worker if isinstance(record, Claim) else ""

        with contextlib.suppress(BrokerError):
            return dict(await asyncio.gather(*map(holder, rids)))
        return {}

    async def partition_owners(self) -> dict[int, str]:
        """Which detokenizer holds the lease of which partition."""
        entries = await self.cluster.bucket(self.cluster.subjects.leases_bucket).entries()
        return {
            int(entry.key): entry.value.decode(errors="replace")
            for entry in entries
            if entry.key.isdigit()
        }

    async def _member(self, role: str, idx: int) -> Member:
        proxy = await self._exits.enter_async_context(TcpProxy(self.broker.port))
        port = free_port()
        name = f"{role}-{idx}"
        return Member(role, proxy, self._kept(role, name, proxy.port, port), port)

    def _kept(self, role: str, name: str, proxy_port: int, http_port: int) -> KeptProcess:
        programs = RolePrograms(*(self._program(one) for one in ("frontend", "worker", "detok")))
        config = ServeConfig(
            nats_url=f"nats://127.0.0.1:{proxy_port}",
            port=http_port,
            metrics_port=http_port - 1 if role == "worker" else 0,  # the launch adds 1
            detok_id=name,
            model_name=MODEL_NAME,
            dtype="float32",
            num_threads=1,
            max_running=self.plan.max_running,
            ack_wait_s=self.plan.ack_wait_s,
            ping_interval_s=1.0,
        )
        environ = {**os.environ, HOOKS_VARIABLE: " ".join(self.plan.hooks)}
        launches = RoleLaunches(config, Path(demo_model()), "json", programs, environ)
        make: Callable[[], Launch] = {
            "frontend": launches.frontend,
            "detok": launches.detok,
            "worker": launches.worker(0),
        }[role]
        on_death = {
            "worker": WorkerHerald(self.cluster, self.card).announce_death,
            "detok": DetokHerald(self.cluster).announce_death,
        }
        say = self._sink("supervisor")
        return KeptProcess(name, make, self._sink(name), say, on_death.get(role))

    def _program(self, role: str) -> list[str]:
        return [sys.executable, "-m", "bench.chaos.role", role]

    def _sink(self, name: str) -> Callable[[str], None]:
        log = self._logs.setdefault(name, (self._folder / f"{name}.log").open("a"))

        def write(line: str) -> None:
            log.write(line + "\n")
            log.flush()

        return write

    async def _is_ready(self) -> bool:
        for port in self.http_ports:
            if not await answers_ok("127.0.0.1", port, "/ready"):
                return False
        subjects = self.cluster.subjects
        try:
            bucket = self.cluster.bucket(subjects.workers_bucket)
            names = [f"{self.card.pool}.{member.incarnation}" for member in self.of("worker")]
            entries = [await bucket.get(name) for name in names]
            owners = await self.partition_owners()
        except BrokerError:
            return False
        cards = [decode(WorkerCard, entry.value) for entry in entries if entry is not None]
        if [card.state for card in cards] != [WorkerState.READY] * self.plan.num_workers:
            return False
        return len([owner for owner in owners.values() if owner]) == subjects.num_partitions
