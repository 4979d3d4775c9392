"""Every `jetflock serve` writes down where it is, so that commands of its user find it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from deploy.local.data_folder import state_dir
from shared.errors import ConfigError

_USERINFO = re.compile(r"(?<=://)[^/@,]+@")


class RunningStack(msgspec.Struct, frozen=True):
    """What others have to know of a `jetflock serve`. It holds no secret."""

    pid: int
    url: str  # of its frontend
    nats_url: str
    prefix: str
    model: str
    started_at: float  # seconds since 1970
    data_dir: str = ""  # of its own nats-server, if it has one
    admin_url: str = ""  # of its admin plane, if it has one
    model_path: str = ""  # the folder that its workers read

    @classmethod
    def of_this_process(
        cls,
        *,
        url: str,
        nats_url: str,
        prefix: str,
        model: str,
        data_dir: str,
        admin_url: str,
        model_path: str,
    ) -> Self:
        """Passwords in a URL are left out."""
        nats_url = _USERINFO.sub("", nats_url)
        at = time.time()
        return cls(os.getpid(), url, nats_url, prefix, model, at, data_dir, admin_url, model_path)


@contextlib.contextmanager
def announced(stack: RunningStack) -> Iterator[None]:
    """Others find it while the body runs; a lock on the file tells that its writer lives.

    Raises ConfigError when the file cannot be written.
    """
    path = _folder() / f"{stack.pid}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigError(
            f"cannot write {path}, by which other commands find this service: {exc.strerror}; "
            "XDG_STATE_HOME names another folder than ~/.local/state"
        ) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(stack), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def running_stacks() -> list[RunningStack]:
    """Those of this user that live, the oldest first."""
    found = (_read(path) for path in _folder().glob("*.json"))
    return sorted((stack for stack in found if stack is not None), key=lambda each: each.started_at)


def _read(path: Path) -> RunningStack | None:
    """None for one that a `kill -9` has left behind, which is removed."""
    try:
        with path.open("rb") as file:
            if _is_locked(file.fileno()):
                return msgspec.json.decode(file.read(), type=RunningStack)
            path.unlink(missing_ok=True)
    except (OSError, msgspec.DecodeError):  # it has just ended, or is of another version
        pass
    return None


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _folder() -> Path:
    return state_dir() / "running"
