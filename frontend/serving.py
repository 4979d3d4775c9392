"""One frontend process, from its connection to its end."""

from __future__ import annotations

import socket

from frontend.config import FrontendConfig
from frontend.frontend import Frontend
from frontend.frontend_role import ROLE
from frontend.metrics import FrontendMetrics
from shared.cluster import open_cluster
from shared.garbage import settle_garbage
from shared.metrics import new_registry
from shared.tracing import Tracer


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
