"""`jetflock serve` with stand-in roles: `python -m tests.deploy.stand_in_stack FLAGS...`."""

from __future__ import annotations

import sys

from deploy.local.__main__ import program
from deploy.local.role_launches import RolePrograms

_ROLE = (sys.executable, "-m", "tests.deploy.stand_in_role")

if __name__ == "__main__":
    program(
        RolePrograms(
            frontend=(*_ROLE, "frontend"),
            front=(*_ROLE, "front"),
            worker=(*_ROLE, "worker"),
            detok=(*_ROLE, "detok"),
        )
    ).run()
