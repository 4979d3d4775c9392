"""How long each phase of an engine's start takes."""

from __future__ import annotations

import time
from collections.abc import Callable


class LoadPhases:
    """One after the other, in seconds of this process's own clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._phase = ""
        self._entered_at = 0.0

    def enter(self, phase: str) -> None:
        """The one before it is over. Without effect in the same phase."""
        if phase == self._phase:
            return
        now = self._clock()
        if self._phase:
            self._took_s[self._phase] = now - self._entered_at
        self._phase, self._entered_at = phase, now

    def end(self) -> dict[str, float]:
        """The last one is over: all of them, in order."""
        self.enter("")
        return {phase: round(seconds, 3) for phase, seconds in self._took_s.items()}
