"""What `jetflock nats-users` writes: a file for a server to include, and passwords."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deploy.nats.permissions import Permissions
from shared.errors import ConfigError
from shared.nats_login import read_secret

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
