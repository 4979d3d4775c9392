"""What the start of a stack spent its time on, part by part: they overlap."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from shared.machine.process_age import process_age_s


class StartTimes:
    """Seconds since this process was born, imports included."""

    def __init__(self) -> None:
        self._born_at = time.monotonic() - (process_age_s(os.getpid()) or 0.0)
        self._spans: dict[str, tuple[float, float]] = {"this command": (0.0, self.now_s)}
        self._engines: dict[str, Mapping[str, float]] = {}

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._born_at

    def begin(self, part: str) -> None:
        """Without effect when it has begun."""
        self._spans.setdefault(part, (self.now_s, self.now_s))

    def end(self, part: str, phases: Mapping[str, float] | None = None) -> None:
        """`phases` are those that the part itself has measured, in order."""
        self.begin(part)
        self._spans[part] = (self._spans[part][0], self.now_s)
        if phases:
            self._engines[part] = phases

    def table(self) -> str:
        """A line a part: its name, when it was begun, when ready, how long it took."""
        lines = [f"  {'start-up, s':<22}{'from':>8}{'to':>8}{'took':>8}\n"]
        for part, (begin, end) in self._spans.items():
            lines.append(f"  {part:<22}{begin:>8.2f}{end:>8.2f}{end - begin:>8.2f}\n")
            for phase, took in self._engines.get(part, {}).items():
                lines.append(f"    {phase:<20}{'':>16}{took:>8.2f}\n")
        return "".join(lines)
