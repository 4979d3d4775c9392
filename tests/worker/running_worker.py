"""A whole worker inside the test, with an engine that does what the test says."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster, open_cluster
from shared.errors import EngineHung, OutdatedBuild
from shared.protocol.finish import Finish
from shared.protocol.token_ids import unpack_token_ids
from shared.subjects import new_incarnation
from shared.telemetry.metrics import new_registry
from tests.eventually import PATIENCE_S, eventually
from tests.worker.io_stage import Stage, make_card, make_tokenizer
from worker.config import WorkerConfig
from worker.engine_link.engine_messages import (
    AbortRequest,
    AdapterLoaded,
    AddRequest,
    CacheReleased,
    DropAdapter,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineLoad,
    EngineReady,
    FlushCache,
    LoadAdapter,
    ReleaseCache,
    RunBegin,
    RunOutput,
    SetPaused,
    SetProfiling,
    StepOutput,
)
from worker.held.held_request import HeldRequest
from worker.metrics.worker_metrics import WorkerMetrics
from worker.requests.request_runner import RequestRunner
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import LoraFolder
from worker.weights.worker_model import ServedWeights, WorkerModel
from worker.worker import Worker


class FakeEngine:
    """Behind the seam of EngineHost: keeps its commands, and gives what the test tells it to."""

    def __init__(
        self,
        path: Path,
        on_event: Callable[[EngineEvent], None],
        on_exit: Callable[[int], None],
        max_running: int,
    ) -> None:
        self.path = path
        self._on_event = on_event
        self._on_exit = on_exit
        self._max_running = max_running
        self._num_steps = 0
        self.runs: dict[int, AddRequest] = {}  # every one that was ever added
        self.active: set[int] = set()
        self.aborted: list[int] = []
        self.is_paused = False
        self.num_flushes = 0
        self.num_releases = 0  # of its cache's memory
        self.profiles: list[float] = []  # how long each is to take; 0: one ended
        self.is_dead = False
        self.adapters: dict[str, Path] = {}
        self.adapter_error = ""
        self._added: asyncio.Queue[AddRequest] = asyncio.Queue()

    async def start(self) -> None: ...

    def send(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                assert command.run_id not in self.runs, "a run id is never reused"
                self.runs[command.run_id] = command
                self.active.add(command.run_id)
                self._added.put_nowait(command)
            case AbortRequest(run_id=run_id):
                self.aborted.append(run_id)
                self.active.discard(run_id)
            case SetPaused(paused=paused):
                self.is_paused = paused
            case FlushCache():
                self.num_flushes += 1
            case ReleaseCache():
                assert not self.active, "it has runs"
                self.num_releases += 1
                self._on_event(CacheReleased())
            case SetProfiling(max_s=max_s):
                self.profiles.append(max_s)
            case LoadAdapter(adapter=adapter, path=path):
                self.adapters[adapter] = Path(path)
                self._on_event(AdapterLoaded(adapter, self.adapter_error))
            case DropAdapter(adapter=adapter):
                del self.adapters[adapter]

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            asyncio.get_running_loop().call_soon(self._on_exit, -9)

    def fail(self, message: str) -> None:
        """It cannot start."""
        self._on_event(EngineFailed(message))
        self._on_exit(1)

    def become_ready(self, *, can_release_cache: bool = True, **traits: Any) -> None:
        limits = 1000, 29, self._max_running, 100_000, 512
        self._on_event(EngineReady(*limits, can_release_cache=can_release_cache, **traits))

    def die(self) -> None:
        self.is_dead = True
        self._on_exit(-9)

    async def next_run(self, timeout_s: float = PATIENCE_S) -> AddRequest:
        async with asyncio.timeout(timeout_s):
            return await self._added.get()

    def emit(self, run_id: int, token_ids: list[int], finish: Finish | None = None) -> None:
        """One step in which this run made tokens; also for a run that was aborted meanwhile."""
        if finish is not None:
            self.active.discard(run_id)
        self.step([RunOutput(run_id, token_ids, finish)])

    def begin(self, run_id: int, queue_s: float, num_cached_tokens: int = 0) -> None:
        """A step without results, in which this run leaves the engine's queue."""
        self.step([], begun=[RunBegin(run_id, queue_s, num_cached_tokens)])

    def step(
        self,
        outputs: list[RunOutput],
        num_pinned_tokens: int = 0,
        begun: Sequence[RunBegin] = (),
    ) -> None:
        assert not self.is_paused or not outputs, "a paused engine makes nothing"
        self._num_steps += 1
        num_free = self._max_running - len(self.active)
        load = EngineLoad(len(self.active), 0, 0, num_free, 100_000, 100_000, 0, 0, 0)
        load = msgspec.structs.replace(load, num_pinned_tokens=num_pinned_tokens)
        num_tokens = sum(len(output.token_ids) for output in outputs)
        self._on_event(StepOutput(self._num_steps, outputs, load, num_tokens, list(begun)))

    async def keep_stepping(self, interval_s: float = 0.05) -> None:
        """Alive, without results, until cancelled."""
        while True:
            self.step([])
            await asyncio.sleep(interval_s)


def output_of(run: AddRequest) -> list[int]:
    """The tokens that a run goes on from."""
    return unpack_token_ids(run.output_ids)


@dataclass
class RunningWorker:
    """The worker, its engines in the order in which they were started, and what it holds."""

    id: str
    worker: Worker
    cluster: Cluster
    task: asyncio.Task[None]
    engines: list[FakeEngine] = field(default_factory=list)
    has_left: bool = False  # by itself, with an error

    @property
    def registry(self) -> CollectorRegistry:
        return self.worker._metrics.registry

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    @property
    def runner(self) -> RequestRunner:
        return self.worker._runner

    @property
    def held(self) -> list[HeldRequest]:
        return list(self.runner.parts.held_requests)

    def count(self, name: str) -> int:
        """The value of a counter of its metrics, as "offers.made"."""
        return int(attrgetter(name)(self.worker._metrics).value)

    async def next_engine(self) -> FakeEngine:
        """After a death: the next engine, ready."""
        num_engines = len(self.engines)
        await eventually(lambda: len(self.engines) > num_engines)
        self.engine.become_ready()
        return self.engine

    async def until_idle(self) -> None:
        """Everything is settled; asserts that nothing of it is left."""
        await eventually(lambda: not self.held)
        self.assert_nothing_held()

    def assert_nothing_held(self) -> None:
        held_requests = self.runner.parts.held_requests
        assert len(held_requests) == 0
        assert held_requests.num_runs == 0
        assert held_requests._empty.is_set()
        assert self.engine.active == set(), "the engine runs what nobody holds"

    async def stop(self, timeout_s: float = PATIENCE_S) -> None:
        """As on SIGTERM."""
        self.worker.shutdown.ask()
        async with asyncio.timeout(timeout_s):
            await asyncio.wait([self.task])
        await self.task

    async def until_hung(self, timeout_s: float = PATIENCE_S) -> None:
        """It leaves by itself, because its engine hangs."""
        self.has_left = True
        async with asyncio.timeout(timeout_s):
            with pytest.raises(EngineHung):
                await self.task

    async def until_outdated(self, timeout_s: float = PATIENCE_S) -> None:
        """It leaves by itself, because the service has gone on to what it does not know."""
        self.has_left = True
        async with asyncio.timeout(timeout_s):
            with pytest.raises(OutdatedBuild):
                await self.task

    async def kill(self) -> None:
        """As by kill -9, but its heartbeat is gone at once."""
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def running_worker(
    stage: Stage,
    *,
    max_running: int = 4,
    is_ready: bool = True,
    checkpoint: Checkpoint | None = None,
    required_loras: dict[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[RunningWorker]:
    worker_config = WorkerConfig(
        nats_url=stage.config.nats_url,
        num_partitions=stage.config.num_partitions,
        ack_wait_s=stage.config.ack_wait_s,
        **config,
    )
    worker_id = new_incarnation("worker")
    engines: list[FakeEngine] = []

    def make_engine(
        path: Path, on_event: Callable[[EngineEvent], None], on_exit: Callable[[int], None]
    ) -> FakeEngine:
        engines.append(FakeEngine(path, on_event, on_exit, max_running))
        return engines[-1]

    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(worker_config, worker_id))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        weights = checkpoint or Checkpoint(ModelFiles(Path(), {}, {}), make_card(), "")
        loras = LoraFolder(Path(folder), required_loras or {})
        worker = Worker(
            worker_config,
            cluster,
            worker_id,
            WorkerModel(make_card(), make_tokenizer(), ServedWeights(weights), loras),
            make_engine,
            WorkerMetrics(new_registry("test"), "m"),
        )
        task = asyncio.create_task(worker.run())
        running = RunningWorker(worker_id, worker, cluster, task, engines)
        try:
            # Who sees its card can reach it.
            await eventually(lambda: bool(engines) and worker._heartbeat.is_shown)
            if is_ready:
                running.engine.become_ready()
            yield running
        finally:
            if not task.done():
                await running.stop()
        if not task.cancelled() and not running.has_left:
            task.result()
