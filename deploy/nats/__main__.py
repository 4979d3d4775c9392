"""`jetflock nats-users`: makes the users of a nats-server."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deploy.nats.permissions import (
    ROLES,
    SERVICE,
    in_domain,
    on_prefixes,
    to_other_accounts,
    with_clients,
)
from deploy.nats.users import ACCOUNT, accounts_config, users_config, write_users
from shared.cli.program import Program
from shared.config import ERASER, FLAT
from shared.errors import ConfigError
from shared.subjects import Subjects

_SUMMARY = """\
Make NATS users with least rights: admin, frontend, service, eraser, worker, detok, and
the clients.

Writes users.conf, for a nats-server's configuration to include, and a password file for each."""
_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, kw_only=True)
class UsersConfig:
    """Flags of `jetflock nats-users`."""

    out: Path = Path("nats-users")
    """Folder to write to."""
    prefix: str = "jf"
    """As the roles are told it."""
    also_prefix: tuple[str, ...] = ()
    """Other prefixes that the roles use, too: while `jetflock migrate` moves them there."""
    nats_js_domain: str | None = None
    """As the roles are told it."""
    service_name: str = "jetflock"
    """As the frontends are told it."""
    clients: tuple[str, ...] = ("client",)
    """Users that may only send requests to the service; no one hears another's answers."""
    max_deadline_s: float = 3600.0
    """As the roles are told it: so long a server remembers who asked, with --accounts."""
    accounts: bool = False
    """Give each client an account of its own, which imports the service from that of the roles."""


def main(config: Annotated[UsersConfig, FLAT] = UsersConfig()) -> None:
    """Make the users."""
    subjects = Subjects(config.prefix, js_domain=config.nats_js_domain)
    _check(config, subjects)
    roles = in_domain(
        on_prefixes((config.prefix, *config.also_prefix), config.service_name),
        config.nats_js_domain,
    )
    users = (*roles, *config.clients)
    if config.accounts:
        layout = functools.partial(
            accounts_config,
            to_other_accounts(roles),
            config.service_name,
            config.clients,
            config.max_deadline_s,
        )
    else:
        layout = functools.partial(
            users_config, with_clients(roles, config.service_name, config.clients)
        )
    path = write_users(config.out, users, layout)
    sys.stdout.write(f"{path}: {', '.join(users)}\n{_summary(config)}")


def _check(config: UsersConfig, subjects: Subjects) -> None:
    """Raises ConfigError."""
    for client in config.clients:
        prefixes = (subjects.prefix, *config.also_prefix)
        is_ours = client in (*ROLES, ACCOUNT) or client.startswith(
            tuple(f"{prefix}_" for prefix in prefixes)
        )
        if _CLIENT.fullmatch(client) is None or is_ours:
            raise ConfigError(
                f"clients: {client!r} must match {_CLIENT.pattern}, be none of "
                f"{', '.join((*ROLES, ACCOUNT))}, and not begin with {subjects.prefix}_"
            )


def _summary(config: UsersConfig) -> str:
    """What frontends and clients must know."""
    callers = "accounts" if config.accounts else "users"
    logins = " ".join(
        f"--nats-{user}-user {user} --nats-{user}-password-file {config.out / user}.password"
        for user in (SERVICE, ERASER)
    )
    return (
        f"frontends: --nats-callers {callers} {logins}\n"
        f"clients: {config.service_name}.<name>.generate and so on; "
        'jetflock.Client(user="<name>", password=...)\n'
    )


PROGRAM = Program(name="jetflock nats-users", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
