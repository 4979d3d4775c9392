"""What this process may use of the machine: cores and memory, cgroups included."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def num_usable_cores(cgroup: Path = CGROUP) -> int:
    """The cores of our affinity mask, but no more than a container's quota."""
    num_cores = len(os.sched_getaffinity(0))
    quota = _read_words(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        num_cores = min(num_cores, max(1, int(quota[0]) // int(quota[1])))
    return num_cores


def available_memory_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """What can still be allocated without swapping or being killed."""
    available = _available_on_host(meminfo)
    limit, used = _read_words(cgroup / "memory.max"), _read_words(cgroup / "memory.current")
    if limit and used and limit[0] != "max":
        num_used = int(used[0]) - _reclaimable(cgroup)
        available = min(available, max(0, int(limit[0]) - num_used))
    return available


def _reclaimable(cgroup: Path) -> int:
    """Files that were read, as a checkpoint before, and are only kept as long as there is room."""
    words = _read_words(cgroup / "memory.stat")
    stat = dict(zip(words[::2], words[1::2], strict=False))
    return int(stat.get("inactive_file", 0))


def _available_on_host(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no MemAvailable in {meminfo}")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
