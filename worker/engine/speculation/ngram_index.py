"""Finds what followed the last time that a sequence looked as it does at its end."""

from __future__ import annotations

import array

from worker.engine.speculation.token_index import cyclic


class NgramIndex:
    """The n-grams of one growing sequence, each with what came behind its last occurrence.

    Nothing is looked at twice: `continuation` adds what is new since its last call.
    """

    def __init__(self, min_len: int, max_len: int) -> None:
        # By n-gram length, longest first: n-gram -> index behind its last occurrence that has a
        # token there.
        self._ends: dict[int, dict[tuple[int, ...], int]] = {
            length: {} for length in range(max_len, min_len - 1, -1)
        }
        self._num_indexed = 0  # every n-gram that ends up to here is known

    def continuation(self, token_ids: array.array[int], max_tokens: int) -> list[int]:
        """What followed the longest n-gram that ends the sequence, by its last occurrence."""
        self._update(token_ids)
        for length, ends in self._ends.items():
            start = ends.get(tuple(token_ids[-length:]))
            if start is not None:
                return cyclic(token_ids, start, max_tokens)
        return []

    def _update(self, token_ids: array.array[int]) -> None:
        end = len(token_ids) - 1  # nothing has followed the last token yet
        if end <= self._num_indexed:
            return
        for length, ends in self._ends.items():
            start = max(0, self._num_indexed - length + 1)
            window = token_ids[start:end].tolist()
            ngrams = zip(*(window[shift:] for shift in range(length)), strict=False)
            ends.update(zip(ngrams, range(start + length, end + 1), strict=False))
        self._num_indexed = end
