"""`jetflock serve` with stand-in roles: `python -m tests.deploy.stand_in_stack FLAGS...`."""

from __future__ import annotations

import sys
from typing import Annotated

from deploy.local.role_launches import RolePrograms
from deploy.local.serve_config import ServeConfig, demo_model
from deploy.local.stack import run_stack
from shared.config import FLAT, run_program

_ROLE = (sys.executable, "-m", "tests.deploy.stand_in_role")
_PROGRAMS = RolePrograms(
    frontend=(*_ROLE, "frontend"), worker=(*_ROLE, "worker"), detok=(*_ROLE, "detok")
)


def serve(
    model: str = demo_model(),
    /,
    *,
    config: Annotated[ServeConfig, FLAT] = ServeConfig(),  # noqa: B008
) -> None:
    run_stack(model, config, _PROGRAMS)


if __name__ == "__main__":
    run_program("jetflock serve", "", serve)
