"""How many requests may be on their way to a claim: no more than are claimed in a second.

Whoever pulls more than it can claim lets them wait for itself in place of for any worker, and on a
starved machine until the server gives them to others, who do the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_S = 1.0
_MIN = 16  # to begin with; it grows as fast as claims are stored


class ClaimPace:
    """Counts claims as they are settled, one way or another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled: deque[float] = deque()
        self._num_open = 0

    def begin(self) -> None:
        """A request is to be claimed."""
        self._num_open += 1

    def end(self) -> None:
        """It is ours, or somebody else's."""
        self._num_open -= 1
        self._settled.append(self._clock())

    @property
    def room(self) -> int:
        """How many more may begin."""
        since = self._clock() - _WINDOW_S
        while self._settled and self._settled[0] < since:
            self._settled.popleft()
        return max(0, max(_MIN, 2 * len(self._settled)) - self._num_open)
