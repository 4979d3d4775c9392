"""Draws from the softmax of a row: the token with the largest logit + Gumbel noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from worker.engine.sampling.counter_hash import CounterHash, gumbel_of

GREEDY_TEMPERATURE = 1e-5  # up to here noise decides nothing, and division may overflow

FloatRow = npt.NDArray[np.float32]  # [vocab_size]

_MANY = 8  # from a kept share of 1 / _MANY on, hashing the whole row is cheaper than picking
_LUCKY_HASH = (1 << 32) - (1 << 26)  # one token in 64 has at least this


class GumbelMax:
    """The noise is a `CounterHash`'s: a function of seed, position and token id alone."""

    def __init__(self, vocab_size: int) -> None:
        self._hash = CounterHash(vocab_size)

    def draw(
        self, logits: FloatRow, largest: float, threshold: float, seed: int, position: int
    ) -> int:
        """Among the tokens with at least the threshold; `largest` is the row's largest logit."""
        is_kept = None
        if threshold > -np.inf:
            is_kept = logits >= np.float32(threshold)
            if np.count_nonzero(is_kept) * _MANY < len(logits):
                kept_ids = np.flatnonzero(is_kept)
                noisy = logits[kept_ids] + self._hash.gumbel(seed, position, kept_ids)
                return int(kept_ids[noisy.argmax()])
        return self._draw_of_many(logits, largest, is_kept, self._hash.hash_all(seed, position))

    def _draw_of_many(
        self,
        logits: FloatRow,
        largest: float,
        is_kept: npt.NDArray[np.bool_] | None,
        hashes: npt.NDArray[np.uint32],
    ) -> int:
        """Logarithms only for tokens that can win: with the largest logit their noise would do."""

        def candidates(least_hash: int) -> tuple[npt.NDArray[np.int64], FloatRow]:
            can_win = hashes >= np.uint32(least_hash)
            if is_kept is not None:
                can_win &= is_kept
            can_win[likeliest] = True
            token_ids = np.flatnonzero(can_win)
            return token_ids, logits[token_ids] + gumbel_of(hashes[token_ids])

        likeliest = int(logits.argmax())
        token_ids, noisy = candidates(_LUCKY_HASH)
        best = float(noisy.max())
        least_hash = _least_hash(best - largest - 1e-3 - 1e-6 * abs(best))
        if least_hash < _LUCKY_HASH:
            token_ids, noisy = candidates(least_hash)
        return int(token_ids[noisy.argmax()])


def _least_hash(noise: float) -> int:
    """A hash from which on the noise may be this large."""
    if noise < -6.0:
        return 0
    return max(0, int(math.exp(-math.exp(-noise)) * 2.0**32) - 1)
