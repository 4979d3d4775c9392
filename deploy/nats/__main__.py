"""`jetflock nats-users`: makes the users of a nats-server."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deploy.nats.permissions import permissions
from deploy.nats.users import write_users
from shared.config import FLAT
from shared.errors import ConfigError
from shared.program import Program
from shared.subjects import Subjects

_SUMMARY = """\
Make NATS users with least rights: admin, frontend, worker, detok, and the clients.

Writes users.conf, for a nats-server's configuration to include, and a password file for each."""
_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, kw_only=True)
class UsersConfig:
    """Flags of `jetflock nats-users`."""

    out: Path = Path("nats-users")
    """Folder to write to."""
    prefix: str = "jf"
    """As the roles are told it."""
    service_name: str = "jetflock"
    """As the frontends are told it."""
    clients: tuple[str, ...] = ("client",)
    """Users that may only send requests to the service; no one hears another's answers."""


def main(config: Annotated[UsersConfig, FLAT] = UsersConfig()) -> None:
    """Make the users."""
    roles = permissions(Subjects(config.prefix), config.service_name, ())
    for client in config.clients:
        if _CLIENT.fullmatch(client) is None or client in roles:
            raise ConfigError(
                f"clients: {client!r} must match {_CLIENT.pattern}, and be none of "
                f"{', '.join(roles)}"
            )
    users = permissions(Subjects(config.prefix), config.service_name, config.clients)
    path = write_users(config.out, users)
    sys.stdout.write(f"{path}: {', '.join(users)}\n")


PROGRAM = Program(name="jetflock nats-users", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
