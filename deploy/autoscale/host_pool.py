"""The workers of one pool on this host, kept in number by a scaler until somebody stops it."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from deploy.local.heralds import WorkerHerald
from deploy.local.pool_care import PoolCare
from deploy.local.role_launches import RoleLaunches
from deploy.local.serve_config import ServeConfig
from deploy.local.served_model import register_served
from deploy.local.terminal import Terminal
from deploy.processes.kept_process import KeptProcess
from deploy.processes.worker_fleet import WorkerFleet
from deploy.scaling.scaler import Scaler, ScalerMetrics
from deploy.scaling.service_sides import ServiceSides
from shared.checkpoint.model_files import ModelFiles
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster
from shared.protocol.role_cards import WorkerRole
from shared.status.health import Checkup, HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.telemetry.log import get_logger
from shared.telemetry.loop_watch import LoopWatch

_NO_NATS = "NATS cannot be reached"

log = get_logger(__name__)


class HostPool:
    """Its workers die with it, as those of `jetflock serve` do: nobody is left without a keeper.

    Those of other hosts stay, and so does the queue: their scalers see what is missing.
    """

    def __init__(
        self,
        config: ServeConfig,
        files: ModelFiles,
        launches: RoleLaunches,
        terminal: Terminal,
        registry: CollectorRegistry,
        scaler_id: str,
    ) -> None:
        self._config = config
        self._files = files
        self._launches = launches
        self._terminal = terminal
        self._registry = registry
        self._scaler_id = scaler_id
        self.shutdown = Shutdown()

    async def run(self, cluster: Cluster) -> None:
        """Until `shutdown` is asked for. Raises ConfigError."""
        config = self._config
        card = await register_served(cluster, self._files, config)
        sides = ServiceSides(cluster)
        herald = WorkerHerald(sides, card)
        fleet = WorkerFleet(
            lambda idx, role: self._kept(idx, role, herald),
            KeptProcess.run,
            herald.publish_state,
            leave_timeout_s=config.leave_timeout_s,
        )
        scaler = Scaler(
            sides,
            card,
            self._scaler_id,
            fleet,
            config.scale_policies(),
            config.scale_interval_s,
            config.max_running,
            ScalerMetrics(self._registry, card.name, config.ranges).note,
        )
        board = HealthBoard()
        board.watch(lambda: Checkup(not_ready=() if cluster.nc.is_connected else (_NO_NATS,)))
        async with (
            serving_status(self._registry, board, StatusAddress.of(config)),
            asyncio.TaskGroup() as tasks,
        ):
            watching = tasks.create_task(LoopWatch(self._registry).run())
            following = tasks.create_task(sides.run(config, self._scaler_id, self._register))
            scaling = tasks.create_task(_scale(scaler, sides, tasks))
            caring = tasks.create_task(
                sides.on_each(lambda each: PoolCare(each, card, self._scaler_id, fleet).run())
            )
            log.info("scaling", model=card.name, workers=str(config.worker_range))
            await self.shutdown.asked.wait()
            scaling.cancel()
            watching.cancel()
            await self._stop(fleet)
            caring.cancel()
            await asyncio.wait({caring})
            following.cancel()

    async def _register(self, cluster: Cluster) -> None:
        await register_served(cluster, self._files, self._config)

    def _kept(self, idx: int, role: WorkerRole, herald: WorkerHerald) -> KeptProcess:
        name = f"worker-{idx + 1}"
        return KeptProcess(
            name,
            self._launches.worker(idx, role),
            self._terminal.log_sink(name),
            self._terminal.say,
            herald.announce_death,
            reports_ready=True,
        )

    async def _stop(self, fleet: WorkerFleet) -> None:
        """A second signal waits for nobody."""
        stopping = asyncio.create_task(fleet.stop(self._config.leave_timeout_s))
        hurried = asyncio.create_task(self.shutdown.hurried.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for kept in fleet.everybody if self.shutdown.hurried.is_set() else ():
            kept.kill()
        hurried.cancel()
        await stopping


async def _scale(scaler: Scaler, sides: ServiceSides, tasks: asyncio.TaskGroup) -> None:
    """Who knows one side of two would start what the other one has."""
    await sides.settled.wait()
    await scaler.run(tasks)
