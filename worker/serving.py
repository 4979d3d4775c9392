"""Wires the I/O process of a worker, around an engine that loads meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import ProcessCollector

from shared.adapter_catalog import AdapterCatalog
from shared.cluster import open_cluster
from shared.errors import ConfigError
from shared.garbage import settle_garbage
from shared.health import HealthBoard
from shared.log import get_logger
from shared.metrics import METRICS_PREFIX, new_registry
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles
from shared.protocol.model_cards import ModelCard
from shared.status_server import serving_status
from shared.tracing import Tracer
from worker.checkpoint import Checkpoint
from worker.config import WorkerConfig
from worker.engine_launch import EngineLaunch
from worker.engine_process import EngineMaker
from worker.lora_folder import lora_folder
from worker.metrics import WorkerMetrics
from worker.worker import Worker

log = get_logger(__name__)


async def serve(
    config: WorkerConfig,
    worker_id: str,
    path: Path,
    model_name: str,
    tracer: Tracer,
    launch: EngineLaunch,
) -> None:
    """Run one worker until SIGTERM or SIGINT; its first engine is `launch`."""
    files = ModelFiles.read(
        path,
        has_dummy_weights=config.load_format == "dummy",
        max_context_len=config.max_context_len,
    )
    worker: Worker | None = None

    async def on_reconnect() -> None:
        if worker is not None:
            await worker.on_reconnect()

    registry, board = new_registry("worker"), HealthBoard()
    metrics = WorkerMetrics(registry, model_name)
    metrics.startup.note_process()
    metrics.startup.enter("connect")
    engines = EngineMaker(config.engine_config, launch)
    ProcessCollector(f"{METRICS_PREFIX}_engine", pid=lambda: engines.pid, registry=registry)
    async with (
        serving_status(registry, board, config.metrics_port),
        open_cluster(config, worker_id, on_reconnect, registry=registry) as cluster,
        AsyncExitStack() as stack,
    ):
        metrics.startup.enter("register model")
        catalog = ModelCatalog(cluster)
        card = await catalog.register(files, model_name)
        if card.revision != files.revision:
            files = updated_files(card, files)
        loras = await stack.enter_async_context(
            lora_folder(
                AdapterCatalog(cluster),
                card.pool,
                config.lora,
                config.max_lora_rank,
                may_replace=not await catalog.has_workers(card.pool),
            )
        )
        tokenizer = await asyncio.to_thread(files.tokenizer_bundle().tokenizer)
        worker = Worker(
            config,
            cluster,
            card,
            worker_id,
            tokenizer,
            await asyncio.to_thread(Checkpoint.read, files, model_name),
            loras,
            engines,
            metrics,
            tracer,
        )
        worker.shutdown.listen()
        settle_garbage()
        board.watch(worker.checkup)
        await worker.run()


def updated_files(card: ModelCard, files: ModelFiles) -> ModelFiles:
    """Of the checkpoint that an update has put in place of ours. Raises ConfigError."""
    path = Path(card.weights_path)
    updated = ModelFiles.read(path, max_context_len=files.stretched_context_len)
    if updated.revision != card.revision:
        raise ConfigError(
            f"model {card.name!r} was updated to revision {card.revision} from {path}, but that "
            f"is revision {updated.revision} now; update the weights again"
        )
    log.warning("serving_updated_weights", path=str(path), in_place_of=str(files.path))
    return updated
