"""Whether a process of this host lives, and since when, as /proc tells it."""

from __future__ import annotations

import os
from pathlib import Path

_DEAD_STATES = "ZXx"
_STATE, _START_TICKS = 0, 19  # places behind the name of the program, which may hold blanks


def started_at(pid: int, now: float) -> float | None:
    """By the clock that shows `now`; None when there is no such process, or it only waits to be
    reaped.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[_STATE] in _DEAD_STATES:
        return None
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return now - uptime_s + int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
