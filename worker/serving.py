"""Wires the I/O process of a worker, around an engine that loads meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from prometheus_client import ProcessCollector

from shared.broker.jetstream import JetStream
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.cli.garbage import settle_garbage
from shared.cluster import Cluster, open_cluster
from shared.errors import ConfigError
from shared.protocol.model_cards import ModelCard
from shared.status.health import HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.subjects import pool_slug
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import METRICS_PREFIX, new_registry
from shared.telemetry.tracing import Tracer
from worker.config import WorkerConfig
from worker.engine_child.engine_process import EngineMaker
from worker.engine_link.engine_launch import EngineLaunch
from worker.metrics.worker_metrics import WorkerMetrics
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import lora_folder
from worker.weights.worker_model import ServedWeights, WorkerModel
from worker.work_place import WorkPlace, work_place
from worker.worker import Worker

log = get_logger(__name__)


async def serve(
    config: WorkerConfig,
    worker_id: str,
    path: Path,
    model_name: str,
    tracer: Tracer,
    launch: EngineLaunch,
) -> bool:
    """Run one worker until SIGTERM or SIGINT; its first engine is `launch`.

    True: its service moves, nothing is left for it here, and it is wanted on the other side.
    """
    files = ModelFiles.read(
        path, options=ModelOptions.of(config), has_dummy_weights=config.load_format == "dummy"
    )

    async def choose(js: JetStream, prefix: str) -> str:
        return await work_place(js, prefix, pool_slug(model_name))

    registry, board = new_registry("worker"), HealthBoard()
    metrics = WorkerMetrics(registry, model_name)
    metrics.startup.note_process()
    metrics.startup.enter("connect")
    engines = EngineMaker(config.engine_config, launch)
    ProcessCollector(f"{METRICS_PREFIX}_engine", pid=lambda: engines.pid, registry=registry)
    async with (
        serving_status(registry, board, StatusAddress.of(config)),
        open_cluster(config, worker_id, registry=registry, choose=choose) as cluster,
        AsyncExitStack() as stack,
    ):
        metrics.startup.enter("register model")
        model = await stack.enter_async_context(registered(config, cluster, files, model_name))
        worker = Worker(config, cluster, worker_id, model, engines, metrics, tracer)
        worker.shutdown.listen(worker.longest_drain_s)
        settle_garbage()
        board.watch(worker.checkup)
        pool = model.card.pool
        place = WorkPlace(cluster, pool, worker_id, worker.num_held, worker.shutdown.ask)
        watching = asyncio.create_task(place.run())
        try:
            await worker.run()
        finally:
            watching.cancel()
        worker.shutdown.call_off()
        return place.is_left and not worker.shutdown.hurried.is_set()


@asynccontextmanager
async def registered(
    config: WorkerConfig, cluster: Cluster, files: ModelFiles, model_name: str
) -> AsyncIterator[WorkerModel]:
    """The model as the cluster knows it, which may have been updated; with a folder for its
    adapters, which goes at the end.
    """
    catalog = ModelCatalog(cluster)
    bundle = files.tokenizer_bundle()
    checkpoint = await asyncio.to_thread(Checkpoint.read, files, model_name)
    wanted = msgspec.structs.replace(checkpoint.card, is_announced=False)
    card = await catalog.register_card(wanted, bundle)
    if card.revision != checkpoint.revision:
        updated = updated_files(card, files)
        bundle = updated.tokenizer_bundle()
        checkpoint = await asyncio.to_thread(Checkpoint.read, updated, model_name)
    async with lora_folder(
        AdapterCatalog(cluster),
        card.pool,
        config.lora,
        config.max_lora_rank,
        may_replace=not await catalog.has_workers(card.pool),
    ) as loras:
        tokenizer = await asyncio.to_thread(bundle.tokenizer)
        yield WorkerModel(card, tokenizer, ServedWeights(checkpoint), loras)


def updated_files(card: ModelCard, files: ModelFiles) -> ModelFiles:
    """The files of the checkpoint that an update has put in place of ours. Raises ConfigError."""
    path = Path(card.weights_path)
    updated = ModelFiles.read(path, options=files.options)
    if updated.revision != card.revision:
        raise ConfigError(
            f"model {card.name!r} was updated to revision {card.revision} from {path}, but that "
            f"is revision {updated.revision} now; update the weights again"
        )
    log.warning("serving_updated_weights", path=str(path), in_place_of=str(files.path))
    return updated
