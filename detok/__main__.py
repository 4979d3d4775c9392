"""`python -m detok`: wires a detokenizer together and runs it until SIGTERM."""

from __future__ import annotations

from typing import Annotated

import uvloop

from detok.config import DetokConfig
from detok.detokenizer import ROLE
from detok.service import serve
from shared.cli.program import Program
from shared.config import FLAT
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.trace_export import open_tracer

_FIRST = (
    "nats_url",
    "metrics_port",
    "log_level",
)


def main(config: Annotated[DetokConfig, FLAT] = DetokConfig()) -> None:  # noqa: B008
    """Turn the token log into text."""
    setup_logging(ROLE, config.log_level, config.log_format)
    detok_id = config.detok_id or new_incarnation(ROLE)
    with open_tracer(config.otel, ROLE, detok_id) as tracer:
        uvloop.run(serve(config, detok_id, tracer))


PROGRAM = Program(
    name="jetflock detok",
    summary="Turn the token log into text.",
    main=main,
    first=_FIRST,
)

if __name__ == "__main__":
    PROGRAM.run()
