"""`python -m worker MODEL`: starts the engine, and then the I/O process around it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shared.checkpoint.model_files import resolve_model, served_name
from shared.cli.garbage import importing_much
from shared.cli.program import Program
from shared.config import FLAT
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.trace_export import open_tracer
from worker.config import WorkerConfig
from worker.engine_link.engine_launch import EngineLaunch
from worker.start_gate import wait_at_gate

_FIRST = (
    "nats_url",
    "model_name",
    "lora",
    "max_running",
    "max_context_len",
    "kv_memory_bytes",
    "num_threads",
    "shutdown_timeout_s",
)

_SUMMARY = """\
Serve MODEL from the queue: a folder in Hugging Face format, or a hub id."""


def main(model: str, /, config: Annotated[WorkerConfig, FLAT] = WorkerConfig()) -> None:  # noqa: B008
    """Serve MODEL: a folder in Hugging Face format, or a hub id."""
    worker_id = config.worker_id or new_incarnation("worker")
    setup_logging("worker", config.log_level, config.log_format)
    config.check()
    path = resolve_model(model)
    model_name = config.model_name or served_name(model)
    if config.node_rank:
        _serve_node(config, worker_id, path, model_name)
        return
    launch = EngineLaunch.start(config.engine_config(path))
    # Importing torch takes longest: the engine does it while we import the rest.
    with importing_much():
        import uvloop

        from worker.serving import serve

    if config.start_gate:
        wait_at_gate()
    with open_tracer(config.otel, "worker", worker_id) as tracer:
        while uvloop.run(serve(config, worker_id, path, model_name, tracer, launch)):
            if config.worker_id is not None:
                return  # who gave it starts another one, under an id that it knows
            # On other streams it is another worker: no id is ever used again.
            worker_id = new_incarnation("worker")
            launch = EngineLaunch.start(config.engine_config(path))


def _serve_node(config: WorkerConfig, node_id: str, path: Path, model_name: str) -> None:
    """What a further host of a model does, which is no worker."""
    import uvloop

    from worker.nodes.further_node import serve_node

    while uvloop.run(serve_node(config, node_id, path, model_name)):
        node_id = new_incarnation("worker")


PROGRAM = Program(
    name="jetflock worker",
    summary=_SUMMARY,
    main=main,
    first=_FIRST,
    takes_peer_flags=True,
)

if __name__ == "__main__":
    PROGRAM.run()
