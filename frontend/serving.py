"""One frontend process, from its connection to its end."""

from __future__ import annotations

import socket

from frontend.assembly.process_parts import ProcessParts
from frontend.config import FrontendConfig
from frontend.frontend import Frontend
from frontend.frontend_role import ROLE
from frontend.metrics.frontend_metrics import FrontendMetrics
from frontend.nats.connection import service_connection
from shared.cli.garbage import settle_garbage
from shared.cluster import open_cluster
from shared.service.move import oldest_prefix
from shared.telemetry.metrics import new_registry
from shared.telemetry.tracing import Tracer


async def serve(
    config: FrontendConfig, frontend_id: str, listener: socket.socket, tracer: Tracer
) -> None:
    """Run one frontend until SIGTERM or SIGINT."""
    metrics = FrontendMetrics(new_registry(ROLE))
    metrics.startup.note_process()
    metrics.startup.enter("connect")
    async with (
        open_cluster(
            config, frontend_id, registry=metrics.registry, choose=oldest_prefix
        ) as cluster,
        service_connection(config, frontend_id, cluster.nc) as service_nc,
    ):
        metrics.startup.enter("start service")
        process = ProcessParts.of(config, frontend_id, listener, service_nc, metrics, tracer)
        frontend = Frontend(process, cluster)
        frontend.shutdown.listen(lambda: config.shutdown_timeout_s)
        settle_garbage()
        await frontend.run()
