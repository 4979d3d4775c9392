"""Lets workers load before their NATS is up, and wait until it is."""

from __future__ import annotations

import os
import subprocess

from shared.config import ENV_PREFIX


class StartGate:
    """A pipe into which nobody writes: that it ends tells all children that they may go on."""

    environ = {f"{ENV_PREFIX}START_GATE": "true"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = os.pipe()

    @property
    def stdin(self) -> int:
        """Of a child that is started now; behind an open gate one that has ended."""
        return subprocess.DEVNULL if self._ends is None else self._ends[0]

    def open(self) -> None:
        """For good; without effect the second time."""
        ends, self._ends = self._ends, None
        for fd in ends or ():
            os.close(fd)
