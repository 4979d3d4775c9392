"""How many tokens a second each worker makes, by what its cards count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.protocol.role_cards import WorkerCard

_MAX_GAP_S = 10.0  # between two cards: what was so long ago says nothing of now


class _Count(NamedTuple):
    at: float  # of the worker's own clock
    num_tokens: int
    per_s: float | None  # up to then; None: not known


class TokenRates:
    """Between the last two cards of each worker that were seen."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def note(self, cards: Iterable[WorkerCard]) -> Mapping[str, float]:
        """Output tokens a second by worker, of those of whom two cards are known."""
        before, self._counts = self._counts, {}
        for card in cards:
            self._counts[card.worker] = _next_count(before.get(card.worker), card)
        return {
            worker: count.per_s for worker, count in self._counts.items() if count.per_s is not None
        }


def _next_count(last: _Count | None, card: WorkerCard) -> _Count:
    num_tokens = card.work.num_generated
    if last is None:
        return _Count(card.at, num_tokens, None)
    gap_s = card.at - last.at
    if gap_s <= 0:  # the same card again
        return last
    per_s = (num_tokens - last.num_tokens) / gap_s if gap_s <= _MAX_GAP_S else None
    return _Count(card.at, num_tokens, per_s)
