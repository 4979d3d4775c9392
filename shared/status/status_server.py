"""HTTP for the roles that have none of their own: /metrics, /health/live, /health/ready.

On a thread, so that it answers also when the event loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.nats_login import read_secret
from shared.status.health import (
    LIVE_PATH,
    READY_PATH,
    HealthAnswer,
    HealthBoard,
    live_answer,
    ready_answer,
)
from shared.status.http_host import HostRule

METRICS_PATHS = ("/", "/metrics")
_POLL_S = 0.1  # how long the end of the process may have to wait for the thread


@dataclass(frozen=True, slots=True)
class StatusAddress:
    """Where, and for whom."""

    port: int  # 0: nowhere
    host: str = "127.0.0.1"
    hosts: HostRule = HostRule.of("127.0.0.1")  # noqa: RUF009 - frozen
    key: str = ""  # that /metrics asks for; "": none

    @classmethod
    def of(cls, config: ClusterConfig) -> Self:
        """Raises ConfigError when the key cannot be read, or is empty."""
        key = ""
        if config.metrics_key_file is not None:
            key = read_secret(config.metrics_key_file)
            if not key:
                raise ConfigError(f"{config.metrics_key_file} holds no key")
        host = config.metrics_host
        return cls(config.metrics_port, host, HostRule.of(host, config.allowed_hosts), key)


@asynccontextmanager
async def serving_status(
    registry: CollectorRegistry, board: HealthBoard, address: StatusAddress
) -> AsyncIterator[None]:
    """Serve while the body runs. Raises ConfigError when the port is taken."""
    if address.port == 0:
        yield
        return
    looking = asyncio.create_task(board.run())
    try:
        with _serving(_app(registry, board, address), address.host, address.port):
            yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


@contextmanager
def _serving(app: WSGIApplication, host: str, port: int) -> Iterator[None]:
    try:
        server = make_server(host, port, app, ThreadingWSGIServer, handler_class=_SilentHandler)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror}; choose another --metrics-port"
        ) from exc
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_S,), name="status", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _app(
    registry: CollectorRegistry, board: HealthBoard, address: StatusAddress
) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)
    wanted = f"Bearer {address.key}".encode()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not address.key and not address.hosts.allows(environ.get("HTTP_HOST", "")):
            return _send(HealthAnswer(403, b"{}"), start_response)
        if path in METRICS_PATHS:
            given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
            if address.key and not hmac.compare_digest(given, wanted):
                return _send(HealthAnswer(401, b"{}"), start_response)
            return metrics(environ, start_response)
        if path == LIVE_PATH:
            return _send(live_answer(board.latest), start_response)
        if path == READY_PATH:
            return _send(ready_answer(board.latest), start_response)
        return _send(HealthAnswer(404, b"{}"), start_response)

    return app


def _send(answer: HealthAnswer, start_response: StartResponse) -> Iterable[bytes]:
    status = HTTPStatus(answer.status_code)
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer.body)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [answer.body]


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Probes come every few seconds."""
