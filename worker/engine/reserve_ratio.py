"""How much of the running requests' future output an admission leaves room for."""

from __future__ import annotations

INITIAL = 0.7
MINIMUM = 0.1
NUM_STEPS = 600  # from the first to the second
AFTER_RETRACTION = 0.3  # is added


class ReserveRatio:
    """A share of the output still allowed: falls while all goes well, rises at a retraction."""

    def __init__(self) -> None:
        self.value = INITIAL

    def on_step(self) -> None:
        self.value = max(MINIMUM, self.value - (INITIAL - MINIMUM) / NUM_STEPS)

    def on_retraction(self) -> None:
        self.value = min(1.0, self.value + AFTER_RETRACTION)
