"""Temporary folders that go with their process: also with one that was killed, at a later start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = "lock"


@contextlib.contextmanager
def locked_folder(prefix: str) -> Iterator[Path]:
    """A new folder of this process alone, which holds a lock in it as long as it lives.

    The lock goes with the process, however that ends: so `remove_dead_folders` knows the living.
    """
    with contextlib.ExitStack() as stack:
        folder = _made(stack, prefix)
        while folder is None:
            folder = _made(stack, prefix)
        yield folder


def _made(stack: contextlib.ExitStack, prefix: str) -> Path | None:
    """None when somebody who starts beside us took it for a dead one's, before it was locked."""
    folder = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
    )
    lock = stack.enter_context((folder / _LOCK).open("wb"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder if os.fstat(lock.fileno()).st_nlink else None


def remove_dead_folders(prefix: str) -> None:
    """Remove folders of this user whose processes have ended, and none that nobody locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # somebody else removes it, or may and we may not
            if path.lstat().st_uid == os.getuid():
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    """Raises BlockingIOError while its process lives."""
    with path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path.parent)
