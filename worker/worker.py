"""One worker incarnation: an engine, the requests it runs, and a heartbeat that says so."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from shared.admin.control import WorkerStats
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.catalog.model_catalog import ModelCatalog
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster
from shared.errors import ConfigError, EngineHung
from shared.event_wait import beat_s
from shared.failover.server_watch import CUT_OFF
from shared.liveness.heartbeat import Heartbeat
from shared.liveness.pool_events import GONE, PoolEvents
from shared.liveness.presence import present
from shared.protocol.prefix_chain import join_hashes
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.status.health import Checkup
from shared.telemetry.log import get_logger
from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.tracing import NO_TRACER, Tracer
from worker.admin.control_service import ControlService
from worker.admin.worker_control import Control, WeightUpdate
from worker.config import WorkerConfig
from worker.engine_child.engine_host import EngineFactory, EngineHost
from worker.engine_link.engine_messages import AdapterLoaded, StepOutput
from worker.metrics.worker_metrics import WorkerMetrics
from worker.nodes.first_node import FirstNode, hello
from worker.requests.request_parts import Incarnation
from worker.requests.request_runner import RequestRunner
from worker.settlement.leftover_sweeper import LeftoverSweeper
from worker.weights.adapters import Adapters
from worker.weights.worker_model import Announcer, WorkerModel

_REPORT_INTERVAL_S = 1.0

log = get_logger(__name__)


class Worker:
    """Wires engine, requests and heartbeat; lives until `shutdown` is asked for."""

    def __init__(
        self,
        config: WorkerConfig,
        cluster: Cluster,
        worker_id: str,
        model: WorkerModel,
        engine_factory: EngineFactory,
        metrics: WorkerMetrics,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._cluster = cluster
        self._card = card = model.card
        self._weights = model.weights
        self._worker_id = worker_id
        self._metrics = metrics
        self._loop_watch = LoopWatch(metrics.registry)
        self._engine = EngineHost(engine_factory, model.weights.checkpoint.path, metrics.startup)
        self._adapters = Adapters(AdapterCatalog(cluster), card.pool, self._engine, model.loras)
        subjects = cluster.subjects
        workers = cluster.bucket(subjects.workers_bucket)
        self._heartbeat = Heartbeat(workers, f"{card.pool}.{worker_id}", self._worker_card)
        self._runner = RequestRunner(
            Incarnation(
                worker_id,
                config,
                cluster,
                model,
                self._adapters,
                self._engine,
                self._heartbeat.writability,
                metrics,
                tracer,
            )
        )
        self._control = Control(
            worker_id,
            self._engine,
            self._runner,
            WeightUpdate(self._engine, self._runner, self._weights, config.nnodes),
            self._adapters,
            self,
            None if config.scripted else config.profile_dir,
        )
        cluster.reconnects.follow(self.on_reconnect)
        self._control_service = ControlService(
            cluster,
            (subjects.admin(card.pool), subjects.admin_worker(card.pool, worker_id)),
            worker_id,
            self._control.handle,
        )
        self._first_nodes = [] if config.nnodes == 1 else [self._make_first_node(config)]
        self._events = PoolEvents(cluster.nc, subjects, card.pool, card.name)
        self._announcer = Announcer(ModelCatalog(cluster), card.pool, is_kept=config.keep_listed)
        self._leftovers = LeftoverSweeper(cluster, card.pool, config.token_retention_s)
        self._published_state: WorkerState | None = None
        self._started_at = time.time()
        self._shutdown_timeout_s = config.shutdown_timeout_s
        self._drain_timeout_s = config.drain_timeout_s
        self._is_hung = False
        self.shutdown = Shutdown()

    async def run(self) -> None:
        """Serve until asked to stop, then drain.

        Raises ConfigError if it cannot start; after it has given everything back EngineHung, or
        OutdatedBuild.
        """
        try:
            async with (
                present(self._cluster.nc, self._cluster.subjects, self._worker_id),
                asyncio.TaskGroup() as tasks,
            ):
                engine = tasks.create_task(self._engine.run(self))
                parts = [
                    tasks.create_task(part)
                    for part in (
                        self._runner.run(),
                        self._adapters.run(),
                        self._runner.parts.log_watch.run(),
                        self._control.run(),
                        self._control_service.run(),
                        self._heartbeat.run(),  # last: who sees the card can give orders
                        self._leftovers.run(),
                        self._announcer.run(),
                        self._report(),
                        self._loop_watch.run(),
                        self._leave_when_hung(),
                        *(each.run() for each in self._first_nodes),
                        self.shutdown.ask_when(self._cluster.level.outdated),
                    )
                ]
                await self.shutdown.asked.wait()
                await self._drain(engine)
                for part in (engine, *parts):
                    part.cancel()
            await self._events.publish_worker(self._worker_id, GONE)
        except ExceptionGroup as group:
            _, others = group.split(ConfigError)
            if others is not None:
                raise
            raise group.exceptions[0] from None
        if self._is_hung:
            raise EngineHung("the engine made no step for too long; its requests were given back")
        self._cluster.level.check()

    def _make_first_node(self, config: WorkerConfig) -> FirstNode:
        """The first host of a model that several share."""
        settings = config.engine_config(self._weights.checkpoint.path)
        return FirstNode(
            self._cluster,
            self._cluster.subjects.nodes(self._card.pool, config.node_group),
            lambda: hello(self._worker_id, self._weights.revision, settings),
            self._engine,
        )

    def num_held(self) -> int:
        """Requests that are its own to bring to an end."""
        return self._runner.num_held

    def drain(self, timeout_s: float | None = None) -> None:
        """As a SIGTERM, with another time for requests to finish; once more: as a second one."""
        if timeout_s is not None:
            self._shutdown_timeout_s = timeout_s
        self.shutdown.ask()

    def show(self) -> None:
        self._heartbeat.beat_soon()

    @property
    def is_leaving(self) -> bool:
        return self.shutdown.asked.is_set()

    def longest_drain_s(self) -> float:
        """What runs may finish, and the rest is handed over."""
        return self._shutdown_timeout_s + 2 * self._drain_timeout_s

    async def _leave_when_hung(self) -> None:
        await self._runner.parts.hang_watch.run()
        self._is_hung = True
        self.shutdown.force()

    async def _drain(self, engine: asyncio.Task[None]) -> None:
        """Take nothing more, let what runs finish for a while, hand over the rest."""
        log.info("draining", num_running=self._engine.load.num_running if self._engine.load else 0)
        self._heartbeat.beat_soon()
        await self._maybe_publish_state()
        self._engine.set_frozen(False)
        await self._runner.stop_taking()
        await self.shutdown.grace(self._runner.emptied, self._shutdown_timeout_s)
        if self._is_hung:
            engine.cancel()  # which kills the process
        try:
            async with asyncio.timeout(2 * self._drain_timeout_s):
                await self._runner.hand_over(crashed=self._is_hung)
        except TimeoutError:  # the broker is away: the requests come again, as those of a dead one
            log.warning("left_without_hand_over")

    async def on_reconnect(self) -> None:
        """The connection to the broker was lost and is back."""
        self._runner.on_reconnect()
        self._leftovers.look_soon()
        if self._engine.ready is not None:
            self._announcer.announce_soon()

    def on_ready(self) -> None:
        self._metrics.engine.note_ready(self._engine.ready)
        self._adapters.on_ready()
        self._runner.on_ready()
        self._announcer.announce_soon()
        self._heartbeat.beat_soon()

    def on_step(self, step: StepOutput) -> None:
        if step.num_fitting is not None:
            self._metrics.engine.memory_shortages.inc()
            log.warning(
                "gpu_memory_short", num_tokens=step.num_tokens, num_fitting=step.num_fitting
            )
        self._runner.on_step(step)

    def on_adapter(self, loaded: AdapterLoaded) -> None:
        self._adapters.on_loaded(loaded)

    async def on_engine_died(self) -> None:
        """Raises ConfigError when the next engine would load other weights than our claims say."""
        self._metrics.engine.restarts.inc()
        await self._runner.on_engine_died()
        await asyncio.to_thread(self._weights.checkpoint.check_unchanged)

    @property
    def _state(self) -> WorkerState:
        if self._is_hung:
            return WorkerState.HUNG
        if self.shutdown.asked.is_set():
            return WorkerState.DRAINING
        if self._control.is_updating:
            return WorkerState.UPDATING
        if self._control.is_asleep:
            return WorkerState.PAUSED
        if self._engine.ready is None:
            return WorkerState.LOADING
        return self._control.state or WorkerState.READY

    def checkup(self) -> Checkup:
        """Alive: the engine is not hung. Ready: it takes requests."""
        watch = self._runner.parts.hang_watch
        silence = f"the engine has made no step for {watch.step_age_s:.1f} s, and owes one"
        not_ready = []
        if self._state is WorkerState.LOADING:
            not_ready.append(f"the engine is loading: {self._engine.loading.phase}")
        elif self._state is not WorkerState.READY:
            not_ready.append(f"the worker is {self._state}")
        if not self._cluster.nc.is_connected:
            not_ready.append("NATS cannot be reached")
        elif self._cluster.server.is_cut_off:
            not_ready.append(CUT_OFF)
        if not self._heartbeat.is_shown:
            not_ready.append("its worker card is not stored")
        if not watch.is_prompt and not watch.is_hung:
            not_ready.append(silence)
        return Checkup((silence,) if watch.is_hung else (), tuple(not_ready))

    def _worker_card(self) -> WorkerCard:
        ready, load = self._engine.ready, self._engine.load
        num_slots = load.num_kv_tokens if load and ready and ready.keeps_kv else 0
        return WorkerCard(
            worker=self._worker_id,
            pool=self._card.pool,
            level=self._cluster.level.known,
            model=self._card.name,
            revision=self._weights.revision,
            state=self._state,
            phase=self._engine.loading.phase if ready is None else "",
            progress=self._engine.loading.progress,
            num_running=load.num_running if load else 0,
            num_waiting=load.num_waiting if load else 0,
            max_running=ready.max_running if ready else 0,
            kv_cache_usage=1 - load.num_free_tokens / num_slots if load and num_slots else 0.0,
            step=self._engine.step,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            prefix_hashes=join_hashes(self._runner.recent_prefixes),
            num_updates=self._control.num_updates,
            update_error=self._control.update_error,
            work=self._runner.work_done,
            num_kv_tokens=num_slots,
            num_waiting_tokens=load.num_waiting_tokens if load else 0,
            at=time.time(),
            has_presence=True,
            startup_s=ready.startup_s if ready else {},
            remark=ready.remark if ready else "",
            gpu=self._engine.gpu,
            kernel_set=ready.kernel_set if ready else "",
            weights=ready.weights if ready else "",
            dtype=ready.dtype if ready else "",
            takes_no_images=ready is not None and ready.takes_no_images,
            takes_no_embeds=ready is not None and ready.takes_no_embeds,
            tells_no_hidden=ready is not None and ready.tells_no_hidden,
            sleep_level=self._engine.sleep_level,
            role=self._runner.parts.roles.role,
            pages=ready.pages if ready else "",
            sends_pages_at=self._runner.parts.peers.address if ready and ready.pages else "",
            fetches_pages=bool(ready and ready.pages),
            num_kept=self._runner.num_kept,
        )

    def update_metrics(self) -> None:
        card, metrics = self._worker_card(), self._metrics.engine
        self._metrics.set_state(card.state)
        metrics.num_running.set(card.num_running)
        metrics.num_waiting.set(card.num_waiting)
        metrics.num_waiting_tokens.set(card.num_waiting_tokens)
        metrics.kv_cache_usage.set(card.kv_cache_usage)
        metrics.set_gpu(card.gpu)
        metrics.set_kernel_set(card.kernel_set)
        if self._engine.load is not None:
            metrics.update(self._engine.load)
        self._runner.update_metrics()

    def stats(self) -> WorkerStats:
        card, requests = self._worker_card(), self._metrics.requests
        return WorkerStats(
            state=card.state.value,
            revision=card.revision,
            uptime_s=round(time.time() - self._started_at, 3),
            num_held=self._runner.num_held,
            num_running=card.num_running,
            num_waiting=card.num_waiting,
            max_running=card.max_running,
            kv_cache_usage=card.kv_cache_usage,
            num_steps=card.step,
            step_age_s=round(self._runner.step_age_s, 3),
            num_taken=int(requests.taken.value),
            num_finished=int(requests.finished.value),
            num_released=int(requests.released.value),
            num_fenced=int(requests.fenced.value),
            num_generated_tokens=int(requests.generation_tokens.value),
            num_engine_restarts=int(self._metrics.engine.restarts.value),
        )

    async def _maybe_publish_state(self) -> None:
        """To those who watch the pool, each change once."""
        if self._state is not self._published_state:
            self._published_state = self._state
            await self._events.publish_worker(self._worker_id, self._state.value)

    async def _report(self) -> None:
        while True:
            await self._maybe_publish_state()
            self.update_metrics()
            await asyncio.sleep(beat_s(_REPORT_INTERVAL_S))
