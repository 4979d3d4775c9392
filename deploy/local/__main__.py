"""`jetflock serve [MODEL]`, or `python -m deploy.local`: reads the configuration and starts."""

# No `from __future__ import annotations` here: cyclopts reads the types of a nested function.

import sys
from typing import Annotated

from cyclopts import Parameter

from deploy.local.role_launches import RolePrograms
from deploy.local.serve_config import demo_model
from deploy.local.serve_flags import serve_flags
from deploy.local.stack import run_stack
from shared.config import FLAT, run_program

_SUMMARY = """\
Run everything on this machine: nats-server, frontend, detokenizer, workers.

MODEL is a folder in Hugging Face format, or a hub id; by default a small model that comes along.

--help-all shows all flags. Each is also a variable (JETFLOCK_PORT), and a key of the YAML file \
named by --config FILE (port)."""

_HIDDEN = Parameter(show=False)


def main(programs: RolePrograms | None = None) -> None:
    """Entry point; `programs` are the roles to start, if not the real ones."""
    flags = serve_flags(is_short="--help-all" not in sys.argv)
    defaults = flags()

    def serve(
        model: Annotated[str, _HIDDEN] = demo_model(),
        /,
        *,
        config: Annotated[flags, FLAT] = defaults,  # type: ignore[valid-type]  # made at run time
    ) -> None:
        run_stack(model, config, programs)

    argv = ["--help" if word == "--help-all" else word for word in sys.argv[1:]]
    run_program("jetflock serve", _SUMMARY, serve, argv)


if __name__ == "__main__":
    main()
