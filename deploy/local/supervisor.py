"""Starts the tree in order, keeps it running, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence

from deploy.local.heralds import DetokHerald, WorkerHerald
from deploy.local.http_probe import answers_ok, reachable_host
from deploy.local.last_time import forget_last_time
from deploy.local.nats_child import NatsChild, is_worth_showing
from deploy.local.pool_care import PoolCare
from deploy.local.progress import StartupProgress
from deploy.local.ready_block import computing_words, ready_block, ready_facts
from deploy.local.role_launches import RoleLaunches
from deploy.local.serve_config import ServeConfig
from deploy.local.served_model import register_served
from deploy.local.start_times import StartTimes
from deploy.local.terminal import Terminal
from deploy.processes.kept_process import DeathCallback, KeptProcess, Launch, LineSink, StartGate
from deploy.processes.worker_fleet import WorkerFleet
from deploy.scaling.scaler import Scaler
from deploy.scaling.service_sides import ServiceSides
from detok.owner_table import OwnerTable
from shared.checkpoint.model_files import ModelFiles
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster, open_cluster
from shared.errors import BrokerError, ConfigError, JetflockError
from shared.event_wait import wait_event
from shared.liveness.pool_events import STARTING
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import LOAD_WEIGHTS, WorkerCard, WorkerState
from shared.service.move import oldest_prefix
from shared.storage.streams import DEFAULT_PARTITIONS
from shared.subjects import new_incarnation

_POLL_S = 0.1
_STOP_MARGIN_S = 0.5  # beyond the time that a role gives its requests
_STOP_NATS_S = 0.8
_MEANWHILE = {
    "worker": "its requests go on with another worker, or wait for this one",
    "frontend": "its streams are cut, and can be resumed where they were",
    "detok": "streams pause until it is back",
    "nats": "everything waits for it, and nothing is lost",
}


class Supervisor:
    """The process tree of one `jetflock serve`: nats-server, detokenizer, frontend, workers.

    A role that dies is started again. A dead worker is announced at once, so that its requests go
    on elsewhere without waiting for its heartbeat to expire.
    """

    def __init__(
        self,
        config: ServeConfig,
        files: ModelFiles,
        launches: RoleLaunches,
        nats_child: NatsChild | None,
        terminal: Terminal,
        times: StartTimes,
    ) -> None:
        self._config = config
        self._files = files
        self._nats_child = nats_child
        self._terminal = terminal
        self._progress = StartupProgress(terminal, times)
        self._shutdown = Shutdown()
        self._failure: JetflockError | None = None
        self._computing = ""  # where the workers compute, once one is ready
        self._herald: WorkerHerald | None = None  # while connected, once the model is registered
        self._gate = StartGate()
        self._nats = None if nats_child is None else self._kept("nats", nats_child.launch)
        self._detok_herald: DetokHerald | None = None  # likewise
        if config.detok_process:
            self._frontend = self._kept("frontend", launches.frontend)
            self._detok = self._kept("detok", launches.detok, self._announce_detok_death)
        else:
            self._frontend = self._kept("frontend", launches.front, self._announce_detok_death)
            self._detok = self._frontend  # it is both
        self._admin = [self._kept("admin", launches.admin)] if config.admin_port else []
        self._services = list(dict.fromkeys((self._detok, self._frontend, *self._admin)))
        self._fleet = WorkerFleet(
            lambda idx, role: self._kept(
                f"worker-{idx + 1}",
                launches.worker(idx, role),
                self._announce_death,
                self._gate,
                reports_ready=True,
            ),
            self._run,
            self._publish_state,
            leave_timeout_s=config.leave_timeout_s,
        )
        for role, workers in config.ranges.items():
            self._fleet.add(workers.least, role)

    async def run(self) -> None:
        """Returns after SIGINT, SIGTERM or SIGHUP. Raises JetflockError when it cannot start."""
        self._shutdown.listen()
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self._serve_or_fail(tasks))
            await self._shutdown.asked.wait()
            self._progress.end()
            self._terminal.say("stopping")
            await self._stop_roles(tasks)
            serving.cancel()
            await asyncio.wait({serving})
            if self._nats is not None:
                await self._nats.stop(_STOP_NATS_S)
        if self._failure is not None:
            raise self._failure

    def _kept(
        self,
        name: str,
        make_launch: Callable[[], Launch],
        on_death: DeathCallback | None = None,
        gate: StartGate | None = None,
        *,
        reports_ready: bool = False,
    ) -> KeptProcess:
        sink = self._terminal.log_sink(name)
        if name == "nats":
            sink = self._nats_sink(sink)
        return KeptProcess(
            name,
            make_launch,
            sink,
            self._terminal.say,
            on_death,
            gate,
            _meanwhile(name),
            reports_ready=reports_ready,
        )

    def _nats_sink(self, sink: LineSink) -> LineSink:
        assert self._nats_child is not None
        store, shows_all = self._nats_child.store, self._config.log_level == "debug"

        def write(line: str) -> None:
            store.note(line)
            if shows_all or is_worth_showing(line):
                sink(line)

        return write

    def _hang_up(self) -> None:
        """The terminal is closed. Its shell may say so as well, which is no second order."""
        if not self._shutdown.asked.is_set():
            self._shutdown.ask()

    def _fail(self, failure: JetflockError) -> None:
        if not self._shutdown.asked.is_set():
            self._failure = failure
            self._shutdown.force()

    # Up

    async def _serve_or_fail(self, tasks: asyncio.TaskGroup) -> None:
        self._progress.begin()
        try:
            async with asyncio.timeout(self._config.start_timeout_s) as limit:
                self._start(tasks)
                await self._wait_for_nats()
                await self._serve(tasks, limit)
        except TimeoutError:
            self._fail(
                ConfigError(
                    f"not ready within {self._config.start_timeout_s:g} s; "
                    "--start-timeout-s allows more"
                )
            )
        except JetflockError as exc:
            self._fail(exc)
        except OSError:  # closing a connection whose server was killed before
            if not self._shutdown.asked.is_set():
                raise

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        """NATS and the workers, which take longest: they load, and wait for NATS at the gate.

        The others follow when it is up. All at once would share the cores out, and be later.
        """
        for kept in (*self._fleet.members, *([] if self._nats is None else [self._nats])):
            self._run_part(kept, tasks)

    def _run_part(self, kept: KeptProcess, tasks: asyncio.TaskGroup) -> None:
        self._progress.update(kept.name, "starting")
        tasks.create_task(self._run(kept))

    async def _wait_for_nats(self) -> None:
        if self._nats_child is not None:
            await self._nats_child.wait_until_up()
            self._progress.finish("nats", f"port {self._nats_child.port}")

    async def _serve(self, tasks: asyncio.TaskGroup, limit: asyncio.Timeout) -> None:
        self._progress.update("streams", "checking")
        async with open_cluster(
            self._config,
            "supervisor",
            # One detokenizer reads them all here, and each partition costs a message per step.
            default_partitions=DEFAULT_PARTITIONS if self._nats is None else 1,
            choose=oldest_prefix,
        ) as cluster:
            sides = ServiceSides(cluster)
            caring = following = renewing = None
            try:
                self._progress.finish("streams")
                dead_workers = []
                if self._nats is not None:
                    dead_workers = await forget_last_time(cluster, self._config.model_name)
                card = await self._register_model(cluster)
                following = tasks.create_task(sides.run(self._config, "supervisor", self._register))
                await sides.settled.wait()
                self._herald = WorkerHerald(sides, card)
                self._detok_herald = DetokHerald(sides)
                for kept in self._fleet.members:
                    await self._herald.publish_state(kept.launch.id, STARTING)
                self._gate.open()
                supervisor_id = new_incarnation("serve")
                caring = tasks.create_task(
                    sides.on_each(
                        lambda each: PoolCare(each, card, supervisor_id, self._fleet).run()
                    )
                )
                for kept in self._services:
                    self._run_part(kept, tasks)
                await self._wait_until_ready(sides)
                limit.reschedule(None)
                self._say_ready()
                if self._nats_child is not None and self._nats is not None:
                    renewing = tasks.create_task(self._nats_child.store.watch(self._nats))
                for worker_id in dead_workers:
                    await self._herald.publish_death(worker_id)
                if all(workers.is_fixed for workers in self._config.ranges.values()):
                    await asyncio.Event().wait()  # until cancelled: the connection is needed
                await self._scaler(sides, card, supervisor_id).run(tasks)
            finally:
                self._herald = self._detok_herald = None
                self._gate.open()
                for task in (caring, following, renewing):
                    if task is not None:
                        task.cancel()
                        await asyncio.wait({task})

    async def _run(self, kept: KeptProcess) -> None:
        try:
            await kept.run()
        except ConfigError as exc:
            self._fail(exc)

    async def _register_model(self, cluster: Cluster) -> ModelCard:
        self._progress.update("model", "writing the model card")
        card = await register_served(cluster, self._files, self._config, starts_over=True)
        self._progress.finish("model", f"{card.name}, {card.max_context_len} tokens")
        return card

    async def _register(self, cluster: Cluster) -> None:
        await register_served(cluster, self._files, self._config)

    async def _wait_until_ready(self, sides: ServiceSides) -> None:
        waiting = {*self._services, *self._fleet.members}
        while waiting:
            with contextlib.suppress(BrokerError):
                for kept, card in (await self._newly_ready(sides, waiting)).items():
                    waiting.discard(kept)
                    kept.mark_ready()
                    kept.note_serving()
                    self._finish(kept, card)
            self._progress.tick()
            await asyncio.sleep(_POLL_S)
        if self._nats is not None:
            self._nats.mark_ready()

    def _finish(self, kept: KeptProcess, card: WorkerCard | None) -> None:
        if card is None:
            self._progress.finish(kept.name)
            return
        self._computing = computing_words(card)
        self._progress.finish(kept.name, f"ready, {self._computing}", card.startup_s)

    async def _newly_ready(
        self, sides: ServiceSides, waiting: set[KeptProcess]
    ) -> dict[KeptProcess, WorkerCard | None]:
        """Workers with their cards."""
        missing: set[KeptProcess] = set()
        if self._frontend in waiting and not await self._frontend_answers():
            missing.add(self._frontend)
        if waiting & set(self._admin) and not await self._admin_answers():
            missing |= set(self._admin)
        if self._detok in waiting and not await self._partitions_are_owned(sides.oldest):
            missing.add(self._detok)
        found = waiting.intersection(self._services) - missing
        ready: dict[KeptProcess, WorkerCard | None] = dict.fromkeys(found)
        cards = {card.worker: card for card in await sides.worker_cards()}
        for kept in self._fleet.members:
            card = cards.get(kept.launch.id)
            if kept not in waiting or card is None:
                continue
            if card.state == WorkerState.READY:
                ready[kept] = card
            else:
                is_counted = card.phase == LOAD_WEIGHTS
                self._progress.update(
                    kept.name,
                    card.phase or "loading",
                    card.progress if is_counted else None,
                    self._files.num_weight_bytes if is_counted else 0,
                )
        return ready

    async def _partitions_are_owned(self, cluster: Cluster) -> bool:
        num_owned = len(await OwnerTable(cluster.js, cluster.subjects).holders())
        num_partitions = cluster.subjects.num_partitions
        self._progress.update(self._detok.name, "taking partitions", num_owned / num_partitions)
        return num_owned >= num_partitions

    async def _frontend_answers(self) -> bool:
        return await answers_ok(reachable_host(self._config.host), self._config.port, "/ready")

    async def _admin_answers(self) -> bool:
        config = self._config
        return await answers_ok(reachable_host(config.admin_host), config.admin_port, "/health")

    def _say_ready(self) -> None:
        self._progress.end()
        has_own_nats = self._nats is not None
        times = self._progress.times
        table = times.table() if self._config.verbose else ""
        self._terminal.show(
            ready_block(self._config, has_own_nats, times.now_s, table, self._computing),
            ready_facts(self._config, times.now_s),
        )

    async def _announce_detok_death(self, launch: Launch, status: int) -> None:
        if self._detok_herald is not None:
            await self._detok_herald.announce_death(launch, status)

    # Workers come and go

    def _scaler(self, sides: ServiceSides, card: ModelCard, scaler_id: str) -> Scaler:
        config = self._config
        return Scaler(
            sides,
            card,
            scaler_id,
            self._fleet,
            config.scale_policies(),
            config.scale_interval_s,
            config.max_running,
        )

    async def _announce_death(self, launch: Launch, status: int) -> None:
        if self._herald is not None:
            await self._herald.announce_death(launch, status)

    async def _publish_state(self, worker_id: str, state: str) -> None:
        if self._herald is not None:
            await self._herald.publish_state(worker_id, state)

    # Down

    async def _stop_roles(self, tasks: asyncio.TaskGroup) -> None:
        """First those who hold requests: what runs may finish, and its text is read to the end. The
        broker outlives them all.
        """
        self._fleet.close()
        roles = [self._frontend, *self._fleet.everybody]
        all_ended = asyncio.Event()
        waiting = tasks.create_task(_note_ended(roles, all_ended))
        leave_s = self._config.hand_over_timeout_s + _STOP_MARGIN_S
        for role in roles:
            role.ask_to_stop()
        await self._shutdown.grace(all_ended, self._config.shutdown_timeout_s + leave_s)
        if self._shutdown.hurried.is_set() and not all_ended.is_set():
            self._terminal.say("stopping now")
            for role in roles:
                role.ask_to_stop()
            await wait_event(all_ended, leave_s)
        for role in roles:
            role.kill()
        waiting.cancel()
        last = [kept for kept in self._services if kept is not self._frontend]
        await asyncio.gather(*(kept.stop(_STOP_MARGIN_S) for kept in last))


def _meanwhile(name: str) -> str:
    """What it means to clients that this one is away."""
    return _MEANWHILE.get(name.partition("-")[0], "")


async def _note_ended(roles: Sequence[KeptProcess], all_ended: asyncio.Event) -> None:
    for role in roles:
        await role.wait_ended()
    all_ended.set()
