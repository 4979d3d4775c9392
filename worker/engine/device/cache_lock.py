"""A lock among the processes of a machine, for what is made once and kept in a cache."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


@contextmanager
def cache_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """Yields whether it is ours: not after `timeout_s`, nor where the file system knows no locks.

    Who has it not may make what is wanted as well: it must replace what is there in one step. The
    kernel takes the lock from a process that dies; the file at `path` stays, and is empty.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _is_taken(file, time.monotonic() + timeout_s)
    finally:
        os.close(file)


def _is_taken(file: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return False
        else:
            return True
