"""The folder where one `jetflock serve` keeps its queue and logs, and that no other may share."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Self

from shared.errors import ConfigError

MIN_FREE_BYTES = 256 << 20


def state_dir() -> Path:
    """`~/.local/state/jetflock`, or where XDG_STATE_HOME says."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "jetflock"


def default_data_dir(http_port: int) -> Path:
    """`~/.local/state/jetflock/port-8000`: one a port, so that two stacks may run side by side."""
    return state_dir() / f"port-{http_port}"


class DataFolder:
    """A locked folder. The lock goes with the process, however it ends."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def lock(cls, path: Path) -> Self:
        """Make and lock the folder. Raises ConfigError when it is unusable or taken."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold prompts
            fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigError(
                f"cannot use the data folder {path}: {exc.strerror}; name another by --data-dir"
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise ConfigError(
                f"the data folder {path} is in use by another jetflock serve (pid {holder}); "
                "stop that one, or name another folder by --data-dir"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        folder = cls(path, fd)
        if folder.free_bytes < MIN_FREE_BYTES:
            folder.unlock()
            raise ConfigError(
                f"the volume of the data folder {path} has {folder.free_bytes >> 20} MiB free, "
                f"needed are {MIN_FREE_BYTES >> 20}; name another by --data-dir"
            )
        return folder

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def unlock(self) -> None:
        os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.unlock()
