"""A frontend on a real nats-server, with a fake behind the queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from frontend.assembly.process_parts import ProcessParts
from frontend.config import FrontendConfig
from frontend.frontend import Frontend, service_connection
from frontend.http.listener import bind
from frontend.metrics import FrontendMetrics
from shared.cluster import Cluster, open_cluster
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.subjects import new_incarnation
from shared.telemetry.tracing import NO_TRACER
from tests.eventually import Looks
from tests.frontend.fake_backend import FakeBackend, Script
from tests.frontend.tiny_model import make_bundle, make_card, register
from tests.nats_server import NatsServer


@dataclass
class RunningFrontend:
    frontend: Frontend
    frontend_id: str
    metrics: FrontendMetrics
    task: asyncio.Task[None]
    was_killed: bool = False  # a test has done so: how it ended says nothing

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.frontend.process.port}"

    def client(self, **options: Any) -> httpx.AsyncClient:
        # Without TLS: authorities that nobody asks take longer to read than many tests do.
        return httpx.AsyncClient(base_url=self.url, timeout=20, verify=False, **options)

    def has_seen(self, other: RunningFrontend) -> bool:
        """It will notice when the other one's heartbeats end."""
        return other.frontend_id in self.frontend.side.inference.orphan_sweeper._missed

    async def die(self) -> None:
        """As by kill -9: nothing is said to NATS, and nothing ended."""
        self.was_killed = True
        await self.frontend.side.streams.cluster.nc.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@dataclass
class Stack:
    """A cluster, a card and a fake backend; frontends are started as a test needs them."""

    server: NatsServer
    cluster: Cluster
    card: ModelCard
    backend: FakeBackend
    exits: contextlib.AsyncExitStack
    caller: Client  # somebody's connection
    options: dict[str, Any] = field(default_factory=dict)

    def say(self, *pieces: str, **options: Any) -> None:
        """What the fake answers from now on."""
        self.backend.script = lambda request: Script(list(pieces), **options)

    def answer(self, script: Callable[[GenerateRequest], Script]) -> None:
        self.backend.script = script

    async def num_queued(self) -> int:
        """Requests that the queue still holds, waiting or running."""
        info = await self.cluster.js.api(f"STREAM.INFO.{self.cluster.subjects.requests_stream}")
        return int(info["state"]["messages"])

    async def until_queued(self, num: int) -> None:
        async for _ in Looks(why=f"not {num} requests are queued"):
            if await self.num_queued() == num:
                return

    async def start_frontend(self, **options: Any) -> RunningFrontend:
        return await self.exits.enter_async_context(
            running_frontend(self.server, **{**self.options, **options})
        )


@contextlib.asynccontextmanager
async def running_frontend(server: NatsServer, **options: Any) -> AsyncIterator[RunningFrontend]:
    config = FrontendConfig(nats_url=server.url, port=0, **{"shutdown_timeout_s": 1.0, **options})
    frontend_id = config.frontend_id or new_incarnation("frontend")
    metrics = FrontendMetrics(CollectorRegistry())
    async with (
        open_cluster(config, frontend_id) as cluster,
        service_connection(config, frontend_id, cluster.nc) as service_nc,
    ):
        process = ProcessParts.of(
            config, frontend_id, bind(config.host, 0), service_nc, metrics, NO_TRACER
        )
        frontend = Frontend(process, cluster)
        task = asyncio.create_task(frontend.run())
        running = RunningFrontend(frontend, frontend_id, metrics, task)
        try:
            await asyncio.wait_for(frontend.started.wait(), 30)
            yield running
        finally:
            frontend.shutdown.ask()
            with contextlib.suppress(asyncio.CancelledError):
                if not running.was_killed:
                    await asyncio.wait_for(task, 15)


@pytest.fixture
async def stack(nats_server: NatsServer) -> AsyncIterator[Stack]:
    caller = Client()
    await caller.connect(nats_server.url)
    async with caller, open_stack(nats_server, caller) as stack:
        yield stack


@pytest.fixture
def large_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt travels by the object store."""
    monkeypatch.setattr("shared.protocol.prompt_object.INLINE_PROMPT_BYTES", 4)


@pytest.fixture
async def older_stack(nats_server: NatsServer) -> AsyncIterator[Stack]:
    """Its streams were made by a build of feature level 1."""
    caller = Client()
    await caller.connect(nats_server.url)
    async with caller, open_stack(nats_server, caller, first_level=1) as stack:
        yield stack


@contextlib.asynccontextmanager
async def open_stack(
    server: NatsServer, caller: Client, *, first_level: int = FEATURE_LEVEL, **options: Any
) -> AsyncIterator[Stack]:
    """`options`: as whom the test and the fake connect."""
    config = FrontendConfig(nats_url=server.url, queue_max_msgs=8, **options)
    async with contextlib.AsyncExitStack() as exits:
        cluster = await exits.enter_async_context(
            open_cluster(config, "test", first_level=first_level)
        )
        bundle = make_bundle()
        card = make_card(bundle)
        await register(cluster, bundle, card)
        backend = FakeBackend(cluster, card, lambda request: Script(["Hello", ", world", "!"]))
        exits.push_async_callback(_end, backend, asyncio.create_task(backend.run()))
        yield Stack(server, cluster, card, backend, exits, caller, {"queue_max_msgs": 8})


async def _end(backend: FakeBackend, task: asyncio.Task[None]) -> None:
    backend.is_over = True
    task.cancel()
    await asyncio.wait([task])
