"""`jetflock nats-users`: writes a file of users for a nats-server to include, and passwords."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import functools
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from deploy.nats.permissions import (
    ROLES,
    SERVICE,
    Permissions,
    in_domain,
    on_prefixes,
    to_other_accounts,
    with_clients,
)
from shared.cli.program import Program
from shared.config import ERASER, FLAT
from shared.errors import ConfigError
from shared.nats_login import read_secret
from shared.subjects import Subjects

_SUMMARY = """\
Make NATS users with least rights: admin, frontend, service, eraser, worker, detok, and
the clients.

Writes users.conf, for a nats-server's configuration to include, and a password file for each."""
_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,32}")
CONFIG_NAME = "users.conf"
ACCOUNT = "JETFLOCK"  # of the roles, where clients have accounts of their own
_MARGIN_S = 60  # of the one answer to a request that is not streamed, beyond its deadline
_HEAD = "# Made by `jetflock nats-users`: run it again rather than edit this.\n"

Passwords = Mapping[str, str]


def write_users(folder: Path, users: Iterable[str], config: Callable[[Passwords], str]) -> Path:
    """Write `users.conf` and a password file for each user; passwords that are there are kept.

    Returns the path of the configuration. Raises ConfigError.
    """
    path = folder / CONFIG_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        passwords = {user: _password(folder / f"{user}.password") for user in users}
        _write_secret(path, config(passwords))
    except OSError as exc:
        raise ConfigError(f"cannot write to {folder}: {exc.strerror}") from exc
    return path


def users_config(users: Mapping[str, Permissions], passwords: Passwords) -> str:
    """All in one account: the `authorization` block of a nats-server's configuration."""
    listed = [_user(name, rights, passwords) for name, rights in users.items()]
    return f"{_HEAD}authorization: {json.dumps({'users': listed}, indent=2)}\n"


def accounts_config(
    roles: Mapping[str, Permissions],
    service: str,
    clients: Iterable[str],
    max_deadline_s: float,
    passwords: Passwords,
) -> str:
    """An account for the roles, which exports to each client's own what is below its name.

    Subjects of one account are none of another's: a client may name whatever it likes as its reply,
    and the answer comes to that subject of its own account.
    """
    accounts: dict[str, Any] = {
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [_user(name, rights, passwords) for name, rights in roles.items()],
            "exports": [
                {
                    "service": _below(service, client),
                    "accounts": [client],
                    "response_type": "stream",
                    # Silence, after which the server forgets where the answers go.
                    "response_threshold": f"{max_deadline_s + _MARGIN_S:.0f}s",
                }
                for client in clients
            ],
        }
    }
    for client in clients:
        imported = {"account": ACCOUNT, "subject": _below(service, client)}
        accounts[client] = {
            "users": [{"user": client, "password": passwords[client]}],
            "imports": [{"service": imported}],
        }
    return f"{_HEAD}accounts: {json.dumps(accounts, indent=2)}\n"


def _below(service: str, client: str) -> str:
    return f"{service}.{client}.>"


def _user(name: str, rights: Permissions, passwords: Passwords) -> dict[str, Any]:
    return {
        "user": name,
        "password": passwords[name],
        "permissions": {
            "publish": {"allow": list(rights.publish)},
            "subscribe": {"allow": list(rights.subscribe)},
        },
    }


def _password(path: Path) -> str:
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(32) + "\n")
    return read_secret(path)


def _write_secret(path: Path, text: str) -> None:
    """Never readable by others, not even for a moment."""
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


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
