"""Where an engine keeps what took long to make, for the next one of this user."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def cache_folder() -> Path | None:
    """It may not exist yet. None where there is neither XDG_CACHE_HOME nor a home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "jetflock"
    except RuntimeError:
        return None


def make_private(path: Path) -> None:
    """A folder that nobody but this user may read or write. Raises OSError, also where it is there
    and others may.
    """
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{path} is not this user's alone (mode 700)")


def open_private(path: Path, flags: int = os.O_TRUNC) -> int:
    """A file that this user alone may read, to write to it; not what a link leads to."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
