"""How far the start of an engine is."""

from __future__ import annotations

from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.process import LoadPhases
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_messages import EngineLoading

GRAIN = 0.05  # of the weights: less is not reported


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

    def on_weights(self, progress: float) -> None:
        """So much of the weights is loaded, 0 to 1."""
        if progress - self._reported >= GRAIN or progress == 1.0:
            self.enter(LOAD_WEIGHTS, progress)

    def end(self) -> dict[str, float]:
        """The start is over: the seconds of all its phases, in order."""
        return self._phases.end()
