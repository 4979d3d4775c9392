"""Users of a nats-server with the rights of their role: a file to include, and their passwords."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from deploy.nats.permissions import Permissions
from shared.config import read_secret
from shared.errors import ConfigError

CONFIG_NAME = "users.conf"


def write_users(folder: Path, users: Mapping[str, Permissions]) -> Path:
    """Write `users.conf` and a password file for each user; passwords that are there are kept.

    Returns the path of the configuration. Raises ConfigError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        passwords = {user: _password(folder / f"{user}.password") for user in users}
        config = folder / CONFIG_NAME
        _write_secret(config, users_config(users, passwords))
    except OSError as exc:
        raise ConfigError(f"cannot write to {folder}: {exc.strerror}") from exc
    return config


def users_config(users: Mapping[str, Permissions], passwords: Mapping[str, str]) -> str:
    """The `authorization` block of a nats-server's configuration."""
    listed = [
        {
            "user": user,
            "password": passwords[user],
            "permissions": {
                "publish": {"allow": list(rights.publish)},
                "subscribe": {"allow": list(rights.subscribe)},
            },
        }
        for user, rights in users.items()
    ]
    return (
        "# Made by `jetflock nats-users`: run it again rather than edit this.\n"
        f"authorization: {json.dumps({'users': listed}, indent=2)}\n"
    )


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
