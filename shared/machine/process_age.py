"""How old a process of this machine is, by its kernel."""

from __future__ import annotations

import os
from pathlib import Path

_DEAD_STATES = "ZXx"
_STATE, _START_TICKS = 0, 19  # places behind the name of the program, which may hold blanks


def process_age_s(pid: int) -> float | None:
    """Seconds, to 10 ms. None: there is no such process, it only waits to be reaped, or there is
    no /proc.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    if fields[_STATE] in _DEAD_STATES:
        return None
    return max(0.0, uptime_s - int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK"))
