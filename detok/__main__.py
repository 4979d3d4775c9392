"""`python -m detok`: wires a detokenizer together and runs it until SIGTERM."""

from __future__ import annotations

import asyncio
from typing import Annotated

import uvloop

from detok.config import DetokConfig
from detok.detokenizer import Detokenizer
from detok.live_detoks import ROLE
from shared.cluster import open_cluster
from shared.config import FLAT
from shared.garbage import settle_garbage
from shared.health import Checkup, HealthBoard
from shared.log import setup_logging
from shared.loop_watch import LoopWatch
from shared.metrics import new_registry
from shared.program import Program
from shared.startup_phases import StartupPhases
from shared.status_server import serving_status
from shared.subjects import new_incarnation
from shared.trace_export import open_tracer
from shared.tracing import Tracer

_FIRST = (
    "nats_url",
    "metrics_port",
    "log_level",
)


def main(config: Annotated[DetokConfig, FLAT] = DetokConfig()) -> None:  # noqa: B008
    """Turn the token log into text."""
    setup_logging("detok", config.log_level, config.log_format)
    detok_id = config.detok_id or new_incarnation(ROLE)
    with open_tracer(config.otel, "detok", detok_id) as tracer:
        uvloop.run(_run(config, detok_id, tracer))


async def _run(config: DetokConfig, detok_id: str, tracer: Tracer) -> None:
    registry, board, startup = new_registry("detok"), HealthBoard(), StartupPhases()
    registry.register(startup)
    startup.note_process()
    startup.enter("connect")
    async with (
        serving_status(registry, board, config.metrics_port),
        open_cluster(config, detok_id, registry=registry) as cluster,
    ):
        startup.enter("catch up")
        detokenizer = Detokenizer(cluster, config, detok_id, tracer)
        detokenizer.shutdown.listen()
        registry.register(detokenizer.collector)
        settle_garbage()

        def look() -> Checkup:
            checkup = detokenizer.checkup()
            if not checkup.not_ready:
                startup.end()
            return checkup

        board.watch(look)
        watching = asyncio.create_task(LoopWatch(registry).run())
        try:
            await detokenizer.run()
        finally:
            watching.cancel()


PROGRAM = Program(
    name="jetflock detok",
    summary="Turn the token log into text.",
    main=main,
    first=_FIRST,
)

if __name__ == "__main__":
    PROGRAM.run()
