"""`python -m worker MODEL`: wires the I/O process of a worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import uvloop

from shared.cluster import open_cluster
from shared.config import FLAT, run_program
from shared.garbage import settle_garbage
from shared.health import HealthBoard
from shared.log import setup_logging
from shared.metrics import new_registry
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles, resolve_model, served_name
from shared.status_server import serving_status
from shared.subjects import new_incarnation
from worker.config import WorkerConfig
from worker.engine_process import EngineProcess
from worker.metrics import WorkerMetrics
from worker.worker import Worker


def main(model: str, /, config: Annotated[WorkerConfig, FLAT] = WorkerConfig()) -> None:  # noqa: B008
    """Serve MODEL: a folder in Hugging Face format, or a hub id."""
    worker_id = config.worker_id or new_incarnation("worker")
    setup_logging("worker", config.log_level, config.log_format)
    uvloop.run(
        serve(config, worker_id, resolve_model(model), config.model_name or served_name(model))
    )


async def serve(config: WorkerConfig, worker_id: str, path: Path, model_name: str) -> None:
    """Run one worker until SIGTERM or SIGINT."""
    config.check()
    engine_config = config.engine_config(path)
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
    ):
        card = await ModelCatalog(cluster).register(files, model_name)
        tokenizer = await asyncio.to_thread(files.tokenizer_bundle().tokenizer)
        worker = Worker(
            config,
            cluster,
            card,
            worker_id,
            tokenizer,
            lambda on_event, on_exit: EngineProcess(engine_config, on_event, on_exit),
            WorkerMetrics(registry, model_name),
        )
        worker.shutdown.listen()
        settle_garbage()
        board.watch(worker.checkup)
        await worker.run()


if __name__ == "__main__":
    run_program("jetflock worker", "Serve a model from the queue.", main)
