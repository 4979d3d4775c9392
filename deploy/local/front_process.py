"""A frontend with the detokenizer in its process: it hears text by a call, not over NATS.

Where one frontend is all there is, as under `jetflock serve`, that saves a message and a process's
turn for each step. Beside other frontends its death would pause their streams, too.
"""

# No `from __future__ import annotations` here: the fields' types are read at run time.

import asyncio
import dataclasses
import socket
from dataclasses import dataclass
from typing import Annotated, ClassVar

from detok.config import DetokConfig
from detok.detokenizer import ROLE as DETOK
from detok.service import serve as serve_detok
from frontend.__main__ import prepare, run
from frontend.config import ROLE, FrontendConfig
from shared.broker.text_readers import TextReaders
from shared.cli.garbage import importing_much
from shared.cli.program import Program
from shared.config import FLAT
from shared.subjects import new_incarnation
from shared.telemetry.trace_export import open_tracer
from shared.telemetry.tracing import Tracer


@dataclass(frozen=True, kw_only=True)
class FrontConfig(FrontendConfig, DetokConfig):
    """What both are configured with."""

    nats_role: ClassVar[str] = ROLE

    def of_detok(self) -> DetokConfig:
        fields = dataclasses.fields(DetokConfig)
        return DetokConfig(**{field.name: getattr(self, field.name) for field in fields})


def main(config: Annotated[FrontConfig, FLAT] = FrontConfig()) -> None:
    """Serve the HTTP and NATS APIs, and turn the token log into text."""
    prepare(config)
    with importing_much():  # late, as a frontend does
        import frontend.frontend  # noqa: F401
    run(config, _serve)


async def _serve(
    config: FrontConfig, frontend_id: str, listener: socket.socket, tracer: Tracer
) -> None:
    """The detokenizer ends when the streams that wait for its text have ended."""
    from frontend.frontend import serve as serve_frontend

    readers, drained = TextReaders(), asyncio.Event()
    detok_id = config.detok_id or new_incarnation(DETOK)
    with open_tracer(config.otel, DETOK, detok_id) as detok_tracer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                serve_detok(
                    config.of_detok(), detok_id, detok_tracer, until=drained, readers=readers
                )
            )
            await serve_frontend(config, frontend_id, listener, tracer, readers)
            drained.set()


PROGRAM = Program(
    name="jetflock serve",
    summary="Serve the HTTP and NATS APIs, and turn the token log into text.",
    main=main,
)

if __name__ == "__main__":
    PROGRAM.run()
