"""For how long each worker has been at the same step, by what its cards count."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from shared.protocol.role_cards import WorkerCard


class StepAges:
    """Between cards that were seen: known from the second time on."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[int, float]] = {}  # worker -> step, and since when

    def note(self, cards: Iterable[WorkerCard]) -> Mapping[str, float]:
        """Seconds by worker, of those that have requests to step for."""
        now, before, self._steps = time.monotonic(), self._steps, {}
        ages = {}
        for card in cards:
            step, since = before.get(card.worker, (card.step, now))
            if step != card.step or not card.num_running:
                step, since = card.step, now
            self._steps[card.worker] = step, since
            if card.num_running:
                ages[card.worker] = now - since
        return ages
