"""One NATS connection of a role: never gives up reconnecting, and says so when it is away."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.event_wait import beat_s, wait_event
from shared.nats_client.connection_end import end_connection, end_subscription
from shared.nats_client.role_client import RoleClient
from shared.nats_login import NatsLogin
from shared.subjects import Subjects
from shared.telemetry.histograms import EventHistogram
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import METRICS_PREFIX

ReconnectCallback: TypeAlias = Callable[[], Awaitable[None]]
MIN_MAX_PAYLOAD = 1 << 20  # of the server: frames, pieces and queued prompts are cut to fit

_RETRY_S = 0.2
# Nobody listens yet, or nobody answers; a refusal would only be repeated.
_WORTH_RETRYING = (ConnectionError, TimeoutError, nats.errors.NoServersError)

_ROUND_TRIP_EVERY_S = 10.0
_ROUND_TRIP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_METRICS_PREFIX = f"{METRICS_PREFIX}_nats"
_COUNTS = {
    "reconnects": ("reconnects", "Times that the connection was lost and made anew."),
    "received_messages": ("in_msgs", "Messages received."),
    "sent_messages": ("out_msgs", "Messages sent."),
    "received_bytes": ("in_bytes", "Bytes of messages received."),
    "sent_bytes": ("out_bytes", "Bytes of messages sent."),
}

log = get_logger(__name__)


class Reconnects:
    """Who is notified that a connection was lost and is back.

    It is there before the parts that are to be notified.
    """

    def __init__(self) -> None:
        self._callbacks: list[ReconnectCallback] = []
        self._on_loss: list[Callable[[], None]] = []

    def follow_losses(self, callback: Callable[[], None]) -> None:
        """Call it as soon as a connection is lost, when nothing has come over another one yet."""
        self._on_loss.append(callback)

    def notify_loss(self) -> None:
        """The connection is gone."""
        for callback in self._on_loss:
            callback()

    def follow(self, callback: ReconnectCallback) -> None:
        """Call it each time from now on."""
        self._callbacks.append(callback)

    async def notify(self) -> None:
        """The connection is back."""
        for callback in self._callbacks:
            await callback()


async def connect(
    config: ClusterConfig,
    name: str,
    *,
    reconnects: Reconnects | None = None,
    login: NatsLogin | None = None,
    role: str | None = None,
) -> RoleClient:
    """Connect, trying for `nats_connect_timeout_s`. Raises ConfigError.

    As the role that the configuration is of, with its login, unless others are given.
    """
    login = login or config.login()
    login.check()
    options = _options(config, name, role or config.nats_role)
    deadline = time.monotonic() + config.nats_connect_timeout_s
    while True:
        nc = RoleClient(login)
        try:
            # Without reconnecting the first error is raised: a wrong password is reported at once.
            await nc.connect(
                **options,
                **nc.login_options(),
                **_callbacks(nc, reconnects or Reconnects()),
                allow_reconnect=False,
                max_reconnect_attempts=1,
            )
        except (nats.errors.Error, OSError, ssl.SSLError, ValueError) as exc:
            if time.monotonic() > deadline or not isinstance(exc, _WORTH_RETRYING):
                reason = str(exc) or type(exc).__name__
                raise ConfigError(
                    f"cannot connect to NATS at {config.nats_url}: {reason}; "
                    "check --nats-url and the credentials"
                ) from exc
            await asyncio.sleep(_RETRY_S)
            continue
        if nc.max_payload < MIN_MAX_PAYLOAD:
            await nc.close()
            raise ConfigError(
                f"NATS at {config.nats_url} has max_payload {nc.max_payload} (bytes of a message), "
                f"jetflock needs {MIN_MAX_PAYLOAD}: set max_payload: 1MB in its configuration"
            )
        nc.options["allow_reconnect"] = True
        nc.options["max_reconnect_attempts"] = -1
        return nc


async def connect_once(config: ClusterConfig, name: str, url: str) -> Client:
    """One attempt at one server. Raises nats.errors.Error, OSError, or TimeoutError."""
    nc = RoleClient(config.login())
    options = _options(config, name, config.nats_role) | nc.login_options() | {"servers": [url]}

    async def on_error(_: Exception) -> None:
        return

    await nc.connect(**options, error_cb=on_error, allow_reconnect=False, max_reconnect_attempts=1)
    return nc


@asynccontextmanager
async def open_connection(
    config: ClusterConfig,
    name: str,
    *,
    reconnects: Reconnects | None = None,
    login: NatsLogin | None = None,
    role: str | None = None,
) -> AsyncIterator[RoleClient]:
    """The same, closed at the end."""
    nc = await connect(config, name, reconnects=reconnects, login=login, role=role)
    try:
        yield nc
    finally:
        await end_connection(nc)


def _options(config: ClusterConfig, name: str, role: str) -> dict[str, Any]:
    return {
        "servers": [url.strip() for url in config.nats_url.split(",") if url.strip()],
        "name": name,
        "reconnect_time_wait": _RETRY_S,
        # A connection that swallows everything is given up after 3 to 4.5 s: before `ack_wait`
        # ends, and not for a loop that stood still for less.
        "ping_interval": 1.5,
        "max_outstanding_pings": 2,
        "pending_size": 64 << 20,
        "tls": _tls_context(config),
        "inbox_prefix": Subjects(config.prefix).inbox_prefix(role),
    }


def _callbacks(nc: Client, reconnects: Reconnects) -> dict[str, Any]:
    refusal = ""  # the last one that was logged

    async def on_error(exc: Exception) -> None:
        nonlocal refusal
        if nc.is_connected:
            log.warning("nats_error", error=repr(exc))
        elif type(exc) is nats.errors.Error and str(exc) != refusal:
            refusal = str(exc)
            log.error("nats_refuses", error=refusal)

    async def on_disconnect() -> None:
        if not nc.is_closed:
            log.warning("nats_disconnected")
            reconnects.notify_loss()

    async def on_reconnected() -> None:
        nonlocal refusal
        refusal = ""
        log.info("nats_reconnected")
        await reconnects.notify()

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
            await end_subscription(subscription)
    except nats.errors.Error:
        return False


class NatsWatch(Collector):
    """How the connection is: up or not, often made anew or not, quick or slow.

    Sends itself a message every few seconds; everything else the client counts anyway.
    """

    def __init__(self, nc: Client, registry: CollectorRegistry) -> None:
        self._nc = nc
        self._round_trip = EventHistogram(
            f"{_METRICS_PREFIX}_round_trip_seconds",
            "From a message to ourselves to its arrival, by way of the server.",
            _ROUND_TRIP_BOUNDS_S,
        )
        registry.register(self._round_trip)
        registry.register(self)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            begun_at = time.monotonic()
            if self._nc.is_connected and await round_trip(self._nc):
                self._round_trip.observe(time.monotonic() - begun_at)
            await asyncio.sleep(beat_s(_ROUND_TRIP_EVERY_S))

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            f"{_METRICS_PREFIX}_connected",
            "1 while there is a connection.",
            int(self._nc.is_connected),
        )
        for name, (key, text) in _COUNTS.items():
            yield CounterMetricFamily(f"{_METRICS_PREFIX}_{name}", text, self._nc.stats[key])
