"""The `jetflock serve` that runs on this machine: where its nats-server listens."""

from __future__ import annotations

import fcntl
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

from deploy.local.data_folder import default_data_dir


def local_nats_urls() -> list[str]:
    """Of each `jetflock serve` of this user with a nats-server and a data folder by default."""
    folders = sorted(default_data_dir(0).parent.glob("port-*"))
    return [url for folder in folders if (url := nats_url_of(folder)) is not None]


def nats_url_of(folder: Path) -> str | None:
    """Of the one that uses this data folder now; None when none does."""
    if not _is_locked(folder / "lock"):
        return None
    try:
        listen = json.loads((folder / "nats.conf").read_text())["listen"]
    except (OSError, ValueError, KeyError):
        return None
    return f"nats://{listen}"


def is_listening(nats_url: str) -> bool:
    """Whether anybody does, at the first of these servers."""
    address = urlsplit(nats_url.partition(",")[0])
    try:
        with socket.create_connection((address.hostname, address.port or 4222), timeout=1.0):
            return True
    except OSError:
        return False


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        return False
    return False
