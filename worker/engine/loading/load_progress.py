"""How far the start of an engine is, and how long each phase of it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_messages import EngineLoading, RanksAwaited

GRAIN = 0.05  # of the weights: less is not reported


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


class LoadProgress:
    """Reports each phase to the I/O process, and keeps how long it took."""

    def __init__(self, channel: EngineChannel, phases: LoadPhases) -> None:
        self._channel = channel
        self._phases = phases
        self._reported = 0.0

    def enter(self, phase: str, progress: float = 0.0) -> None:
        """`progress` of the whole start's weights, 0 to 1."""
        self._phases.enter(phase)
        self._reported = progress
        self._channel.send(EngineLoading(phase, progress))

    def await_ranks(self, awaited: RanksAwaited) -> None:
        """Other hosts' are to be told of it."""
        self._channel.send(awaited)

    def on_weights(self, progress: float) -> None:
        """Hears how much of the weights is loaded, 0 to 1."""
        if progress - self._reported >= GRAIN or progress == 1.0:
            self.enter(LOAD_WEIGHTS, progress)

    def end(self) -> dict[str, float]:
        """The start is over: the seconds of all its phases, in order."""
        return self._phases.end()
