"""Whose turn it is among the lanes of a class."""

from __future__ import annotations

from collections.abc import Collection

# Requests that each lane gives while all have some: the lowest is served first, none starves.
WEIGHTS = (8, 4, 1)


class LaneTurns:
    """Start-time fair queueing: a lane's turn comes when its start is the earliest.

    Taking from a lane moves its start by 1 / weight. Who has nothing saves nothing up: a lane that
    comes back starts where those are that were busy meanwhile.
    """

    def __init__(self, weights: tuple[int, ...] = WEIGHTS) -> None:
        self._weights = weights
        self._starts = [0.0] * len(weights)
        self._now = 0.0  # start of the latest request taken

    def took(self, level: int) -> None:
        """A request has come from this lane."""
        self._now = max(self._now, self._starts[level])
        self._starts[level] = self._now + 1 / self._weights[level]

    def share(self, num_requests: int, levels: Collection[int]) -> dict[int, int]:
        """How many of the next requests are to come from each of these lanes."""
        starts = {level: max(self._starts[level], self._now) for level in sorted(levels)}
        counts = dict.fromkeys(starts, 0)
        for _ in range(num_requests):
            level = min(starts, key=starts.__getitem__)  # of equal ones the lowest
            counts[level] += 1
            starts[level] += 1 / self._weights[level]
        return {level: count for level, count in counts.items() if count}
