"""Serves the admin plane's HTTP until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal

from frontend.http.listener import bind, http_server
from jetflock.admin_plane.admin_app import AdminApp
from jetflock.admin_plane.admin_config import AdminConfig
from jetflock.running.existing_cluster import existing_cluster
from shared.telemetry.log import get_logger, setup_logging

log = get_logger(__name__)


def run_admin_server(config: AdminConfig) -> None:
    """Raises ConfigError."""
    setup_logging("admin", config.log_level, config.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    asyncio.run(_serve(config))


async def _serve(config: AdminConfig) -> None:
    key, page_origins = config.checked_key(), config.checked_page_origins()
    listener = bind(config.admin_host, config.admin_port)
    async with existing_cluster(config, "jetflock admin", waits=True) as cluster:
        server = http_server(AdminApp(cluster, key, page_origins, config.host_rule()))

        def stop() -> None:
            server.should_exit = True

        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop)
        host, port = listener.getsockname()[:2]
        log.info("admin_listening", host=host, port=port)
        await server.serve([listener])
