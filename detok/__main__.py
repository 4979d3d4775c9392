"""`python -m detok`: wires a detokenizer together and runs it until SIGTERM."""

from __future__ import annotations

import asyncio
from typing import Annotated

import uvloop

from detok.config import DetokConfig
from detok.detokenizer import GIVE_UP_S, ROLE, BothSides, Detokenizer
from shared.cli.garbage import settle_garbage
from shared.cli.program import Program
from shared.cluster import open_cluster
from shared.config import FLAT
from shared.service.move import oldest_prefix
from shared.status.health import Checkup, HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.metrics import new_registry
from shared.telemetry.startup_phases import StartupPhases
from shared.telemetry.trace_export import open_tracer
from shared.telemetry.tracing import Tracer

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
        serving_status(registry, board, StatusAddress.of(config)),
        open_cluster(config, detok_id, registry=registry, choose=oldest_prefix) as cluster,
    ):
        startup.enter("catch up")
        detokenizer = Detokenizer(cluster, config, detok_id, tracer)
        detokenizer.shutdown.listen(lambda: GIVE_UP_S)
        sides = BothSides(detokenizer, cluster, config, registry, tracer)
        settle_garbage()

        def look() -> Checkup:
            checkup = sides.checkup()
            if not checkup.not_ready:
                startup.end()
            return checkup

        board.watch(look)
        watching = asyncio.create_task(LoopWatch(registry).run())
        try:
            await sides.run()
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
