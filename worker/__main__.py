"""`python -m worker MODEL`: wires the I/O process of a worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import uvloop

from shared.adapter_catalog import AdapterCatalog
from shared.cluster import open_cluster
from shared.config import FLAT, run_program
from shared.errors import ConfigError
from shared.garbage import settle_garbage
from shared.health import HealthBoard
from shared.log import get_logger, setup_logging
from shared.metrics import new_registry
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles, resolve_model, served_name
from shared.protocol.model_cards import ModelCard
from shared.status_server import serving_status
from shared.subjects import new_incarnation
from shared.trace_export import open_tracer
from shared.tracing import Tracer
from worker.checkpoint import Checkpoint
from worker.config import WorkerConfig
from worker.engine_process import EngineProcess
from worker.lora_folder import lora_folder
from worker.metrics import WorkerMetrics
from worker.worker import Worker

log = get_logger(__name__)


def main(model: str, /, config: Annotated[WorkerConfig, FLAT] = WorkerConfig()) -> None:  # noqa: B008
    """Serve MODEL: a folder in Hugging Face format, or a hub id."""
    worker_id = config.worker_id or new_incarnation("worker")
    setup_logging("worker", config.log_level, config.log_format)
    path, model_name = resolve_model(model), config.model_name or served_name(model)
    with open_tracer(config.otel, "worker", worker_id) as tracer:
        uvloop.run(serve(config, worker_id, path, model_name, tracer))


async def serve(
    config: WorkerConfig, worker_id: str, path: Path, model_name: str, tracer: Tracer
) -> None:
    """Run one worker until SIGTERM or SIGINT."""
    config.check()
    files = ModelFiles.read(
        path,
        has_dummy_weights=config.load_format == "dummy",
        max_context_len=config.max_context_len,
    )
    worker: Worker | None = None

    async def on_reconnect() -> None:
        if worker is not None:
            await worker.on_reconnect()

    registry, board = new_registry(), HealthBoard()
    async with (
        serving_status(registry, board, config.metrics_port),
        open_cluster(config, worker_id, on_reconnect) as cluster,
        AsyncExitStack() as stack,
    ):
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
            lambda path, on_event, on_exit: EngineProcess(
                config.engine_config(path), on_event, on_exit
            ),
            WorkerMetrics(registry, model_name),
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


if __name__ == "__main__":
    run_program("jetflock worker", "Serve a model from the queue.", main)
