"""`python -m frontend`: wires one frontend process."""

from __future__ import annotations

import logging
import socket
from collections.abc import Coroutine
from typing import Annotated, Any, Protocol, TypeVar

from frontend.config import ROLE, FrontendConfig
from frontend.http.listener import allow_many_connections, bind
from shared.cli.garbage import importing_much
from shared.cli.program import Program
from shared.config import FLAT
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.trace_export import open_tracer
from shared.telemetry.tracing import Tracer

ConfigT = TypeVar("ConfigT", bound=FrontendConfig, contravariant=True)

_FIRST = ("host", "port", "nats_url", "api_key", "api_key_file", "api_keys_file", "cors_origins")


class Serve(Protocol[ConfigT]):
    """Runs one frontend until it is asked to stop."""

    def __call__(
        self, config: ConfigT, frontend_id: str, listener: socket.socket, tracer: Tracer, /
    ) -> Coroutine[Any, Any, None]:
        """It is heard at `listener`."""


def main(config: Annotated[FrontendConfig, FLAT] = FrontendConfig()) -> None:  # noqa: B008
    """Serve the HTTP and NATS APIs."""
    prepare(config)
    # Late: who asks for --help, or has a flag wrong, need not wait for all of it.
    with importing_much():
        from frontend.frontend import serve
    run(config, serve)


def prepare(config: FrontendConfig) -> None:
    """Logging and what can be told of the configuration alone. Raises ConfigError."""
    setup_logging(ROLE, config.log_level, config.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config.api_keys()
    config.service_login()
    config.declared_prefixes()
    config.check_parsers()
    config.check_keeping()


def run(config: ConfigT, serve: Serve[ConfigT]) -> None:
    """`serve` it until SIGTERM or SIGINT. Raises ConfigError."""
    import uvloop

    allow_many_connections()
    listener = bind(config.host, config.port)
    frontend_id = config.frontend_id or new_incarnation(ROLE)
    with open_tracer(config.otel, ROLE, frontend_id) as tracer:
        uvloop.run(serve(config, frontend_id, listener, tracer))


PROGRAM = Program(
    name="jetflock frontend",
    summary="Serve the HTTP and NATS APIs.",
    main=main,
    first=_FIRST,
)

if __name__ == "__main__":
    PROGRAM.run()
