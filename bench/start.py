"""How long `jetflock serve` takes until it is ready, and on what: `make bench-start`.

`--beside CHECKOUT` starts another checkout of this repository in turn, for a ratio that the
neighbours of this machine change little.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import cyclopts
import psutil

from deploy.local.ports import free_port

_HERE = Path(__file__).parents[1]
_READY = "Ctrl-C stops it."
_ROW = re.compile(r"^ +(?P<part>[a-z][\w -]*?) {2,}(?:[\d.]+ +[\d.]+ +)?(?P<took>\d+\.\d\d)$")
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Start:
    """One start, up to its ready block."""

    wall_s: float
    cpu_s: float  # of all its processes
    parts_s: dict[str, float] = field(default_factory=dict)


def start(checkout: Path, flags: tuple[str, ...]) -> Start:
    """Start it, and stop it when it is ready. Keeps compiled Python, as users have it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        words = ("--port", str(free_port()), "--data-dir", f"{folder}/data", *flags)
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "jetflock", "serve", *words],
            cwd=checkout,
            env=env | {"PYTHONPATH": str(checkout)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        parts: dict[str, float] = {}
        try:
            for line in process.stdout:
                if (row := _ROW.match(line.rstrip())) is not None:
                    parts[row["part"]] = float(row["took"])
                if _READY in line:
                    return Start(time.monotonic() - begin, _cpu_s(process.pid), parts)
            raise SystemExit(f"jetflock serve in {checkout} ended before it was ready")
        finally:
            process.terminate()
            process.wait(_TIMEOUT_S)


def _cpu_s(pid: int) -> float:
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main(*, num: int = 5, beside: Path | None = None, model: str | None = None) -> None:
    """`num` starts of this checkout, and of `beside` in turn; the first of each is a warm-up."""
    chosen = () if model is None else (model,)
    ours: list[Start] = []
    theirs: list[Start] = []
    for idx in range(num + 1):
        mine = start(_HERE, (*chosen, "--verbose"))
        other = start(beside.resolve(), chosen) if beside is not None else None
        if idx:
            ours.append(mine)
            theirs += [] if other is None else [other]
    print(f"ready after {_told(ours)}, {num} starts")
    if theirs:
        ratio = statistics.median(a.wall_s / b.wall_s for a, b in zip(ours, theirs, strict=True))
        work = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(ours, theirs, strict=True))
        print(f"beside {beside}: {_told(theirs)}; ratio {ratio:.2f}, of CPU {work:.2f}")
    by_part: dict[str, list[float]] = defaultdict(list)
    for each in ours:
        for part, took in each.parts_s.items():
            by_part[part].append(took)
    print("\n| part | took, s (median; they overlap) |\n|---|---|")
    for part, values in by_part.items():
        print(f"| {part} | {statistics.median(values):.2f} |")


def _told(starts: list[Start]) -> str:
    walls = [each.wall_s for each in starts]
    cpu = statistics.median(each.cpu_s for each in starts)
    spread = f"{min(walls):.2f} to {max(walls):.2f}"
    return f"{statistics.median(walls):.2f} s ({spread}), {cpu:.1f} s of CPU"


if __name__ == "__main__":
    cyclopts.run(main)
