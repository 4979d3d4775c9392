"""Finds where a sequence has been as it is at its end: what a drafter of repetitions goes by."""

from __future__ import annotations

import array
from typing import Protocol


class TokenIndex(Protocol):
    """The index of one sequence, which only grows. Nothing is looked at twice."""

    def continuation(self, token_ids: array.array[int], max_tokens: int) -> list[int]:
        """Up to `max_tokens` that may follow; none where nothing like its end came before."""
        ...


def cyclic(token_ids: array.array[int], start: int, num_tokens: int) -> list[int]:
    """What begins at `start`; at the end of the sequence it goes on with itself."""
    found = token_ids[start : start + num_tokens].tolist()
    num_repeats = -(-num_tokens // len(found))
    return (found * num_repeats)[:num_tokens]
