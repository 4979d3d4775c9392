"""What a process and all that it started hold of this machine's memory, as /proc tells it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

_PARENT = 1  # place behind the name of the program, which may hold blanks


def tree_memory_bytes(pid: int) -> int | None:
    """Pages that several of them share count once. None where there is no such process, or /proc
    does not tell.
    """
    sizes = [size for each in _tree(pid) if (size := _own_bytes(each)) is not None]
    return sum(sizes) if sizes else None


def _tree(pid: int) -> list[int]:
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children[int(fields[_PARENT])].append(int(folder.name))
    tree = [pid]
    for each in tree:
        tree += children[each]
    return tree


def _own_bytes(pid: int) -> int | None:
    """A page that several processes map counts in part for each."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(next(sizes, "0")) * 1024
