"""One NATS connection of a role: never gives up reconnecting, and says so when it is away."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.config import ClusterConfig, read_secret
from shared.errors import ConfigError
from shared.event_wait import wait_event
from shared.log import get_logger

_RETRY_S = 0.2
# Nobody listens yet, or nobody answers; a refusal would only be repeated.
_WORTH_RETRYING = (ConnectionError, nats.errors.TimeoutError, nats.errors.NoServersError)

log = get_logger(__name__)

ReconnectCallback = Callable[[], Awaitable[None]]


async def connect(
    config: ClusterConfig,
    name: str,
    *,
    on_reconnect: ReconnectCallback | None = None,
) -> Client:
    """Connect, trying for `nats_connect_timeout_s`. Raises ConfigError."""

    options = _options(config, name)
    deadline = time.monotonic() + config.nats_connect_timeout_s
    while True:
        nc = Client()
        try:
            # Without reconnecting the first error is raised: a wrong password is told at once.
            await nc.connect(
                **options,
                **_callbacks(nc, on_reconnect),
                allow_reconnect=False,
                max_reconnect_attempts=1,
            )
        except (nats.errors.Error, OSError, ssl.SSLError, ValueError) as exc:
            if time.monotonic() > deadline or not isinstance(exc, _WORTH_RETRYING):
                raise ConfigError(
                    f"cannot connect to NATS at {config.nats_url}: {exc or type(exc).__name__}; "
                    "check --nats-url and the credentials"
                ) from exc
            await asyncio.sleep(_RETRY_S)
            continue
        nc.options["allow_reconnect"] = True
        nc.options["max_reconnect_attempts"] = -1
        return nc


def inbox_prefix(user: str | None) -> str:
    """Where a user hears the answers to its requests; without rights to any other inbox."""
    return "_INBOX" if user is None else f"_INBOX_{user}"


def _options(config: ClusterConfig, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [url.strip() for url in config.nats_url.split(",") if url.strip()],
        "name": name,
        "reconnect_time_wait": _RETRY_S,
        # A connection that swallows everything is given up after 3 to 4.5 s: before `ack_wait`
        # ends, and not for a loop that stood still for less.
        "ping_interval": 1.5,
        "max_outstanding_pings": 2,
        "pending_size": 64 << 20,
        "user": config.nats_user,
        "password": config.password(),
        "tls": _tls_context(config),
        "inbox_prefix": config.nats_inbox_prefix or inbox_prefix(config.nats_user),
    }
    if config.nats_nkey_file is not None:
        options["nkeys_seed_str"] = read_secret(config.nats_nkey_file)
    if config.nats_creds is not None:
        if not config.nats_creds.is_file():
            raise ConfigError(f"cannot read the credentials file {config.nats_creds}")
        options["user_credentials"] = str(config.nats_creds)
    return options


def _callbacks(nc: Client, on_reconnect: ReconnectCallback | None) -> dict[str, Any]:
    async def on_error(exc: Exception) -> None:
        if nc.is_connected:
            log.warning("nats_error", error=repr(exc))

    async def on_disconnect() -> None:
        if not nc.is_closed:
            log.warning("nats_disconnected")

    async def on_reconnected() -> None:
        log.info("nats_reconnected")
        if on_reconnect is not None:
            await on_reconnect()

    return {
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnected,
    }


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


async def round_trip(nc: Client, timeout_s: float = 2.0) -> bool:
    """Whether all that was sent so far has reached the server.

    nats-py's own `flush` does not tell: its PING overtakes what waits to be written.
    """
    arrived = asyncio.Event()

    async def on_message(_: Msg) -> None:
        arrived.set()

    try:
        subscription = await nc.subscribe(inbox := nc.new_inbox(), cb=on_message)
        try:
            await nc.publish(inbox)
            return await wait_event(arrived, timeout_s)
        finally:
            await subscription.unsubscribe()
    except nats.errors.Error:
        return False
