"""SIGSTOP, and the moment from which it holds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_TIMEOUT_S = 10.0


def freeze(pid: int) -> None:
    """Returns when every thread stands still: the signal itself does not wait for that."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _TIMEOUT_S
    while not _stands_still(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.001)


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    # "pid (name) state ...", and the name may hold anything.
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
