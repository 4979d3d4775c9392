"""`jetflock serve [MODEL]`, or `python -m deploy.local`: reads the configuration and starts."""

# No `from __future__ import annotations` here: cyclopts reads the types of a nested function.

from typing import Annotated

from cyclopts import Parameter

from deploy.local.role_launches import RolePrograms
from deploy.local.serve_config import ServeConfig, demo_model
from deploy.local.stack import run_stack
from deploy.local.terminal import Terminal
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import JetflockError

_SUMMARY = """\
Run everything on this machine: nats-server, frontend, detokenizer, workers.

MODEL is a folder in Hugging Face format, or a hub id; by default a small model that comes along."""

_FIRST = (
    "workers",
    "host",
    "port",
    "model_name",
    "api_key_file",
    "nats_url",
    "data_dir",
    "verbose",
)
_DEFAULTS = ServeConfig()
_HIDDEN = Parameter(show=False)


def program(programs: RolePrograms | None = None) -> Program:
    """`programs` are the roles to start, if not the real ones."""

    def serve(
        model: Annotated[str, _HIDDEN] = demo_model(),
        /,
        *,
        config: Annotated[ServeConfig, FLAT] = _DEFAULTS,
    ) -> None:
        try:
            run_stack(model, config, programs)
        except JetflockError as exc:
            if config.log_format != "json":
                raise
            Terminal(as_json=True).say(str(exc))
            raise SystemExit(exc.exit_status) from exc

    return Program(
        name="jetflock serve", summary=_SUMMARY, main=serve, first=_FIRST, takes_peer_flags=True
    )


PROGRAM = program()

if __name__ == "__main__":
    PROGRAM.run()
