"""All roles as real processes, each of which a test may kill, stop and start again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

import psutil

from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.codec import decode
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.eventually import Looks
from tests.forked_program import ForkedProgram
from tests.freezing import freeze, thaw
from tests.leaf_nodes import DomainServer
from tests.nats_cluster import NatsCluster
from tests.nats_server import NatsServer, free_port
from tests.wrong_clock import wrong_clock

REPOSITORY = Path(__file__).parents[2]
DEMO_MODEL = REPOSITORY / "deploy/demo_model/checkpoint"
MODEL_NAME = "demo"
TOKEN_S = 0.02  # each step costs all roles some CPU time: tests last by few of them


def scripted(token_s: float) -> tuple[str, ...]:
    """Flags of a worker without a model."""
    pace = ("--scripted-token-s", str(token_s))
    return ("--scripted", *pace, "--scripted-token-low", "300", "--scripted-token-high", "1200")


SCRIPTED = scripted(TOKEN_S)
REAL_ENGINE = ("--num-threads", "1")


class RoleProcess:
    """One role; `kill` is kill -9, `stop` asks it to go.

    It is forked where it is of the source and the clock of the tests, else started.
    """

    def __init__(
        self,
        name: str,
        argv: list[str],
        log_file: Path,
        clock_ahead_s: float = 0.0,
        build: Path = REPOSITORY,
    ) -> None:
        self.name = name
        self._log_file = log_file
        self.process: subprocess.Popen[bytes] | ForkedProgram
        command = [sys.executable, "-m", *argv]
        env = os.environ | {"PYTHONPATH": str(build)}
        if build == REPOSITORY and not clock_ahead_s:
            self.process = ForkedProgram(command, cwd=build, env=env, out=log_file, err=log_file)
        else:
            env |= wrong_clock(clock_ahead_s) if clock_ahead_s else {}
            self.process = _start(command, log_file, build, env)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    def stop(self, timeout_s: float = 30.0) -> float:
        """SIGTERM; returns the seconds until it was gone."""
        started = time.monotonic()
        self.process.terminate()
        self.process.wait(timeout_s)
        return time.monotonic() - started

    def engine(self) -> psutil.Process:
        """The engine process of a worker."""
        return psutil.Process(self.pid).children()[0]


def _start(
    command: list[str], log_file: Path, build: Path, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(command, cwd=build, stdout=log, stderr=log, env=env)


class RoleStack:
    """A nats-server and roles around it. `async with` starts one frontend and one detokenizer."""

    def __init__(
        self,
        folder: Path,
        *cluster_flags: str,
        nats: NatsServer | NatsCluster | DomainServer | None = None,
        config: ClusterConfig | None = None,
        role_flags: Callable[[str], list[str]] = lambda _: [],
        first_level: int = FEATURE_LEVEL,
    ) -> None:
        """`config`: what the streams are made with, if not the defaults, and by whom;
        `first_level`: by a build that knew no more.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._flags = ["--nats-url", "", "--log-format", "json", *cluster_flags]
        self.nats = nats or NatsServer(folder / "nats")
        self._config = config or ClusterConfig()
        self._role_flags = role_flags
        self._first_level = first_level
        self.roles: list[RoleProcess] = []
        self.clock_ahead_s = 0.0  # of the roles that are started from now on
        self.build = REPOSITORY  # folder of the source that they are of
        self.cluster: Cluster  # the test's own connection, while the stack is open
        self._exits = AsyncExitStack()
        self.ports: dict[str, int] = {}  # frontend name -> port

    async def __aenter__(self) -> RoleStack:
        self.nats.start()
        self._flags[1] = self.nats.url
        config = dataclasses.replace(self._config, nats_url=self.nats.url)
        made = open_cluster(config, "test", first_level=self._first_level)
        self.cluster = await self._exits.enter_async_context(made)
        await ModelCatalog(self.cluster).register(ModelFiles.read(DEMO_MODEL), MODEL_NAME)
        self.start_frontend()
        self.start_detok()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exits.aclose()
        for role in self.roles:
            if role.is_alive:
                role.thaw()
                role.process.kill()
        for role in self.roles:
            role.process.wait()
            if exc is not None:
                print(f"---- {role.name}\n{role.log}")
        self.nats.kill()

    def start_frontend(self, *flags: str) -> RoleProcess:
        port = free_port()
        role = self._start("frontend", "--port", str(port), *flags)
        self.ports[role.name] = port
        return role

    def start_front(self, *flags: str) -> RoleProcess:
        """A frontend with a detokenizer in its process."""
        port = free_port()
        role = self._start("deploy.local.front_process", "--port", str(port), *flags)
        self.ports[role.name] = port
        return role

    def start_detok(self, *flags: str) -> RoleProcess:
        return self._start("detok", *flags)

    def start_worker(
        self, *flags: str, model: Path = DEMO_MODEL, name: str = MODEL_NAME
    ) -> RoleProcess:
        return self._start("worker", str(model), "--model-name", name, *flags)

    def start_autoscaler(self, *flags: str) -> RoleProcess:
        """A host with workers of its own: its child processes."""
        model = (str(DEMO_MODEL), "--model-name", MODEL_NAME)
        return self._start("deploy.autoscale", *model, *flags)

    def _start(self, role: str, *flags: str) -> RoleProcess:
        name = f"{role}-{sum(other.name.startswith(role) for other in self.roles)}"
        argv = [role, *flags, *self._flags, *self._role_flags(role)]
        log_file = self._folder / f"{name}.log"
        process = RoleProcess(name, argv, log_file, self.clock_ahead_s, self.build)
        self.roles.append(process)
        return process

    def url(self, frontend: RoleProcess | None = None) -> str:
        role = frontend or next(r for r in self.roles if r.name in self.ports)
        return f"http://127.0.0.1:{self.ports[role.name]}"

    async def wait_ready(self, num_workers: int, timeout_s: float = 60.0) -> None:
        """All frontends answer, and so many workers are ready."""
        await self.wait_until(self._frontends_answer, timeout_s)
        async for _ in Looks(timeout_s, "the workers did not become ready"):
            if await self._num_ready() >= num_workers:
                return

    async def wait_listed(self, model: str) -> None:
        """The frontend knows a model that no card told of before a worker was ready."""

        def is_listed() -> bool:
            with urllib.request.urlopen(f"{self.url()}/v1/models", timeout=10) as answer:
                return model in {listed["id"] for listed in json.load(answer)["data"]}

        await self.wait_until(is_listed)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        async for _ in Looks(timeout_s, f"{condition} did not come true"):
            if await asyncio.to_thread(condition):
                return
            frontends = [role for role in self.roles if role.name in self.ports]
            assert any(role.is_alive for role in frontends), "no frontend is left"

    async def num_queued(self) -> int:
        """Requests that the queue still holds, waiting or running."""
        stream = self.cluster.subjects.requests_stream
        info = await self.cluster.js.api(f"STREAM.INFO.{stream}")
        return int(info["state"]["messages"])

    async def until_queued(self, num: int, timeout_s: float = 60.0) -> None:
        async for _ in Looks(timeout_s, f"not {num} requests are queued"):
            if await self.num_queued() == num:
                return

    def _frontends_answer(self) -> bool:
        try:
            for role in self.roles:
                if role.name in self.ports and role.is_alive:
                    with urllib.request.urlopen(f"{self.url(role)}/ready", timeout=2):
                        pass
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    async def _num_ready(self) -> int:
        entries = await self.cluster.bucket(self.cluster.subjects.workers_bucket).entries()
        cards = [decode(WorkerCard, entry.value) for entry in entries]
        return sum(card.state is WorkerState.READY for card in cards)
