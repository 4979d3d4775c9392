"""The connection on which callers over NATS are heard and answered, apart from all else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from frontend.config import FrontendConfig
from shared.failover.companion_connection import companion_connection

ROLE = "service"  # of the user, and of its inbox


@asynccontextmanager
async def service_connection(
    config: FrontendConfig, frontend_id: str, main: Client
) -> AsyncIterator[Client | None]:
    """None without a service. Raises ConfigError."""
    if not config.service_name:
        yield None
        return
    login = config.service_login()
    async with companion_connection(config, frontend_id, ROLE, login, main) as nc:
        yield nc
