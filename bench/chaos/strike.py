"""One fault that hit, and what it did to the streams that ran."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

_MOVING_S = 0.5
_IN_FLIGHT_S = 1.0  # what was under way when the fault hit still arrives


@dataclass(slots=True)
class Strike:
    """A fault at its moment. `hits` are the runs that the victim itself served then, by number."""

    name: str
    hits: frozenset[int]
    at: float  # monotonic
    num_running: int = 0
    outage_s: float = 0.0  # of a broker: how long it was away by our own doing

    def end_outage(self) -> None:
        self.outage_s = time.monotonic() - self.at

    def is_over(self, arrivals: Sequence[float]) -> bool:
        """Whether a stream has moved since, by more than what was under way."""
        return not arrivals or arrivals[-1] > self.at + _IN_FLIGHT_S

    def recovery_s(self, arrivals: Sequence[float]) -> float | None:
        """How much longer than usual the stream was silent; None when it cannot be told.

        The longest silence that begins within a second after the fault, or lies over it, counted
        from the fault; less the stream's usual pause between events, and less the outage. A stream
        that was silent already cannot tell.
        """
        before = [arrival for arrival in arrivals if arrival <= self.at]
        if len(before) < 2 or arrivals[-1] <= self.at or self.at - before[-1] > _MOVING_S:
            return None
        pairs = list(itertools.pairwise(arrivals))
        usual_s = statistics.median(later - earlier for earlier, later in pairs)
        silence_s = max(
            (
                later - max(earlier, self.at)
                for earlier, later in pairs
                if earlier <= self.at + _IN_FLIGHT_S and later > self.at
            ),
            default=0.0,
        )
        return max(0.0, silence_s - usual_s - self.outage_s)
