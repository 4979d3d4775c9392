"""One NATS connection of a role: never gives up reconnecting, and says so when it is away."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from shared.config import ClusterConfig, read_secret
from shared.errors import ConfigError
from shared.log import get_logger

log = get_logger(__name__)

ReconnectCallback = Callable[[], Awaitable[None]]


async def connect(
    config: ClusterConfig,
    name: str,
    *,
    on_reconnect: ReconnectCallback | None = None,
    connect_attempts: int = 50,
) -> Client:
    """Connect, trying for about `connect_attempts` / 5 seconds. Raises ConfigError."""

    async def on_error(exc: Exception) -> None:
        if not isinstance(exc, (ConnectionRefusedError, OSError)):
            log.warning("nats_error", error=repr(exc))

    async def on_disconnect() -> None:
        if not nc.is_closed:
            log.warning("nats_disconnected")

    async def on_reconnected() -> None:
        log.info("nats_reconnected")
        if on_reconnect is not None:
            await on_reconnect()

    nc = Client()
    options: dict[str, Any] = {
        "servers": [url.strip() for url in config.nats_url.split(",") if url.strip()],
        "name": name,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnected,
        "reconnect_time_wait": 0.2,
        "ping_interval": 5,
        "max_outstanding_pings": 2,
        "pending_size": 64 << 20,
        "user": config.nats_user,
        "password": config.password(),
        "tls": _tls_context(config),
    }
    if config.nats_nkey_file is not None:
        options["nkeys_seed_str"] = read_secret(config.nats_nkey_file)
    if config.nats_creds is not None:
        if not config.nats_creds.is_file():
            raise ConfigError(f"cannot read the credentials file {config.nats_creds}")
        options["user_credentials"] = str(config.nats_creds)
    try:
        await nc.connect(**options, max_reconnect_attempts=connect_attempts)
    except (nats.errors.Error, OSError, ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"cannot connect to NATS at {config.nats_url}: {exc or type(exc).__name__}; "
            "check --nats-url and the credentials"
        ) from exc
    nc.options["max_reconnect_attempts"] = -1
    return nc


def _tls_context(config: ClusterConfig) -> ssl.SSLContext | None:
    if config.nats_tls_ca is None and config.nats_tls_cert is None:
        return None
    try:
        context = ssl.create_default_context(
            cafile=None if config.nats_tls_ca is None else str(config.nats_tls_ca)
        )
        if config.nats_tls_cert is not None:
            context.load_cert_chain(config.nats_tls_cert, config.nats_tls_key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"cannot load the TLS files: {exc}") from exc
    return context
