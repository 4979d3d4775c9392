"""SIGSTOP, and the moment from which it holds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.eventually import Looks

_TIMEOUT_S = 10.0


def freeze(pid: int) -> None:
    """Returns when every thread stands still: the signal itself does not wait for that."""
    os.kill(pid, signal.SIGSTOP)
    for _ in Looks(_TIMEOUT_S, f"process {pid} does not stop"):
        if _stands_still(pid):
            return


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    # "pid (name) state ...", and the name may hold anything.
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
