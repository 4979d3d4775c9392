"""All roles inside the test, with one tracer: only the engines are processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import nats
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from detok.config import DetokConfig
from detok.detokenizer import Detokenizer
from frontend.assembly.process_parts import ProcessParts
from frontend.config import FrontendConfig
from frontend.frontend import Frontend, service_connection
from frontend.http.listener import bind
from frontend.metrics import FrontendMetrics
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.cluster import open_cluster
from shared.protocol.codec import decode
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.subjects import new_incarnation
from tests.e2e.role_stack import DEMO_MODEL, MODEL_NAME, TOKEN_S
from tests.eventually import Looks
from tests.nats_server import NatsServer
from tests.span_recorder import SpanRecorder
from worker.config import WorkerConfig
from worker.engine_child.engine_process import EngineProcess
from worker.metrics.worker_metrics import WorkerMetrics
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import LoraFolder
from worker.weights.worker_model import ServedWeights, WorkerModel
from worker.worker import Worker


class TracedRoles:
    """Roles leave when the stack is closed, or `stop` is called."""

    def __init__(
        self, server: NatsServer, nats: Client, folder: Path, exits: contextlib.AsyncExitStack
    ) -> None:
        self.server = server
        self.nats = nats  # the test's own connection
        self.recorder = SpanRecorder()
        self._folder = folder
        self._exits = exits

    async def start_frontend(self) -> Frontend:
        config = FrontendConfig(nats_url=self.server.url, port=0, shutdown_timeout_s=0)
        frontend_id = new_incarnation("frontend")
        cluster = await self._exits.enter_async_context(open_cluster(config, frontend_id))
        service_nc = await self._exits.enter_async_context(
            service_connection(config, frontend_id, cluster.nc)
        )
        process = ProcessParts.of(
            config,
            frontend_id,
            bind(config.host, 0),
            service_nc,
            FrontendMetrics(CollectorRegistry()),
            self.recorder.tracer,
        )
        frontend = Frontend(process, cluster)
        await self._exits.enter_async_context(_running(frontend))
        await asyncio.wait_for(frontend.started.wait(), 10)
        return frontend

    async def start_detok(self) -> None:
        config = DetokConfig(nats_url=self.server.url)
        cluster = await self._exits.enter_async_context(open_cluster(config, "detok"))
        detok = Detokenizer(cluster, config, tracer=self.recorder.tracer)
        await self._exits.enter_async_context(_running(detok))

    async def start_worker(self) -> Worker:
        worker_id = new_incarnation("worker")
        config = WorkerConfig(
            nats_url=self.server.url,
            model_path=str(DEMO_MODEL),
            scripted=True,
            scripted_token_s=TOKEN_S,
            scripted_token_low=300,
            scripted_token_high=1200,
        )
        cluster = await self._exits.enter_async_context(open_cluster(config, worker_id))
        files = ModelFiles.read(DEMO_MODEL)
        worker = Worker(
            config,
            cluster,
            worker_id,
            WorkerModel(
                await ModelCatalog(cluster).register(files, MODEL_NAME),
                files.tokenizer_bundle().tokenizer(),
                ServedWeights(Checkpoint.read(files, MODEL_NAME)),
                LoraFolder(self._folder, {}),
            ),
            lambda path, on_event, on_exit: EngineProcess(
                config.engine_config(path), on_event, on_exit
            ),
            WorkerMetrics(CollectorRegistry(), MODEL_NAME),
            self.recorder.tracer,
        )
        await self._exits.enter_async_context(_running(worker))
        workers = cluster.bucket(cluster.subjects.workers_bucket)
        async for _ in Looks(30):
            cards = [decode(WorkerCard, entry.value) for entry in await workers.entries()]
            if WorkerState.READY in [c.state for c in cards if c.worker == worker_id]:
                break
        return worker


@contextlib.asynccontextmanager
async def _running(role: Frontend | Detokenizer | Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(role.run())
    try:
        yield
    finally:
        role.shutdown.ask()
        await asyncio.wait_for(task, 15)


@contextlib.asynccontextmanager
async def traced_roles(server: NatsServer, folder: Path) -> AsyncIterator[TracedRoles]:
    async with contextlib.AsyncExitStack() as exits:
        config = FrontendConfig(nats_url=server.url)
        cluster = await exits.enter_async_context(open_cluster(config, "test"))
        await ModelCatalog(cluster).register(ModelFiles.read(DEMO_MODEL), MODEL_NAME)
        nc = await nats.connect(server.url)
        exits.push_async_callback(nc.close)
        yield TracedRoles(server, nc, folder, exits)


def client_of(frontend: Frontend) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.process.port}", timeout=30)
