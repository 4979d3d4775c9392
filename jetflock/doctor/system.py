"""What the system says: files of its own, and programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SYSTEM_S = 10.0


def run_lines(argv: list[str]) -> list[str]:
    """The lines of its output; none when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            argv, capture_output=True, text=True, check=True, timeout=_SYSTEM_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def read_text(path: Path) -> str:
    """Empty when it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
