"""`python -m frontend`: wires one frontend process."""

from __future__ import annotations

import logging
import socket
from typing import Annotated

import uvloop

from frontend.config import FrontendConfig
from frontend.frontend import Frontend
from frontend.frontend_role import ROLE
from frontend.listener import allow_many_connections, bind
from frontend.metrics import FrontendMetrics
from shared.cluster import open_cluster
from shared.config import FLAT
from shared.garbage import settle_garbage
from shared.log import setup_logging
from shared.metrics import new_registry
from shared.program import Program
from shared.subjects import new_incarnation
from shared.trace_export import open_tracer
from shared.tracing import Tracer

_FIRST = ("host", "port", "nats_url", "api_key", "api_key_file", "api_keys_file", "cors_origins")


def main(config: Annotated[FrontendConfig, FLAT] = FrontendConfig()) -> None:  # noqa: B008
    """Serve the HTTP and NATS APIs."""
    setup_logging(ROLE, config.log_level, config.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config.api_keys()
    allow_many_connections()
    listener = bind(config.host, config.port)
    frontend_id = config.frontend_id or new_incarnation(ROLE)
    with open_tracer(config.otel, ROLE, frontend_id) as tracer:
        uvloop.run(serve(config, frontend_id, listener, tracer))


async def serve(
    config: FrontendConfig, frontend_id: str, listener: socket.socket, tracer: Tracer
) -> None:
    """Run one frontend until SIGTERM or SIGINT."""
    metrics = FrontendMetrics(new_registry(ROLE))
    metrics.startup.note_process()
    metrics.startup.enter("connect")
    frontend: Frontend | None = None

    async def on_reconnect() -> None:
        if frontend is not None:
            frontend.on_reconnect()

    async with open_cluster(
        config, frontend_id, on_reconnect, registry=metrics.registry
    ) as cluster:
        metrics.startup.enter("start service")
        frontend = Frontend(config, cluster, frontend_id, listener, metrics, tracer)
        frontend.shutdown.listen()
        settle_garbage()
        await frontend.run()


PROGRAM = Program(
    name="jetflock frontend",
    summary="Serve the HTTP and NATS APIs.",
    main=main,
    first=(
        "nats_url",
        "host",
        "port",
        "api_key",
        "api_key_file",
        "api_keys_file",
        "cors_origins",
        "log_level",
    ),
)

if __name__ == "__main__":
    PROGRAM.run()
