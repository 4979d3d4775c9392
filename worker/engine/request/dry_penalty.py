"""DRY, which keeps a request from repeating sequences of its own, as llama.cpp defines it.

A token that would lengthen a repetition gets a penalty that grows with the repetition: prompt and
output count, and sequence breakers end what counts as one.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import unpack_token_ids

Ids = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.uint32]

_LOG_OF_LARGEST = 88.7228391  # of a float32: llama.cpp bounds the exponent by it
_FLAT_BASE = 1.000001  # up to here it does not
_MAX_PENALTY = 1e30  # as good as a ban, and a number


class _Seen(NamedTuple):
    """What the first tokens of a request have in them."""

    # [num_tokens] int32: so many tokens up to and with this one are also the last ones. Of the last
    # token itself it is 0.
    repeats: npt.NDArray[np.int32]
    break_end: int  # behind the last sequence breaker


class DryPenalty:
    """The penalties of one request. What it keeps between steps is a function of its tokens.

    A step costs one look at each token before it; only the first one of a run costs more.
    """

    def __init__(self, sampling: SamplingParams) -> None:
        self._multiplier = sampling.dry_multiplier
        self._base = sampling.dry_base
        self._allowed_len = sampling.dry_allowed_length
        self._last_n = sampling.dry_penalty_last_n
        self._breaking_ids: set[int] = set()
        # By its last id: what follows one of some ids and is a breaker with it.
        self._tails: dict[int, list[tuple[tuple[int, ...], frozenset[int]]]] = {}
        for breaker in sampling.dry_breakers:
            heads = unpack_token_ids(breaker.head_ids)
            if breaker.tail:
                tails = self._tails.setdefault(breaker.tail[-1], [])
                tails.append((breaker.tail, frozenset(heads)))
            else:
                self._breaking_ids.update(heads)
        self._seen: _Seen | None = None

    @classmethod
    def maybe_of(cls, sampling: SamplingParams) -> DryPenalty | None:
        """None for a request without it: it must cost nothing."""
        is_on = sampling.dry_multiplier > 0 and sampling.dry_penalty_last_n != 0
        return cls(sampling) if is_on else None

    def at(
        self, token_ids: array.array[int], draft_ids: Sequence[int] = ()
    ) -> tuple[Ids, npt.NDArray[np.float32]]:
        """What to subtract behind these tokens: ids, each once, and values.

        `token_ids`: prompt and output, which only grows from call to call.
        """
        tokens = np.frombuffer(token_ids, np.uint32)
        seen = self._seen or self._first_seen(tokens)
        self._seen = seen = self._with_more(seen, tokens)
        if draft_ids:
            tokens = np.concatenate([tokens, np.array(draft_ids, np.uint32)])
            seen = self._with_more(seen, tokens)
        ids, repeat_lens = self._lengthened(seen, tokens)
        return ids, self._penalties(repeat_lens)

    def _first_seen(self, tokens: Tokens) -> _Seen:
        ends = (end for end in range(len(tokens), 0, -1) if self._breaks_at(tokens, end))
        return _Seen(suffix_repeats(tokens), next(ends, 0))

    def _with_more(self, seen: _Seen, tokens: Tokens) -> _Seen:
        """What was seen, and what stands in `tokens` behind it."""
        for num_seen in range(len(seen.repeats), len(tokens)):
            end = num_seen + 1
            seen = _Seen(
                _next_repeats(seen.repeats, tokens[:end]),
                end if self._breaks_at(tokens, end) else seen.break_end,
            )
        return seen

    def _breaks_at(self, tokens: Tokens, end: int) -> bool:
        """Whether a sequence breaker ends before this place."""
        last = int(tokens[end - 1])
        if last in self._breaking_ids:
            return True
        for tail, heads in self._tails.get(last, ()):
            head_idx = end - len(tail) - 1
            is_head = head_idx >= 0 and int(tokens[head_idx]) in heads
            if is_head and tuple(tokens[head_idx + 1 : end].tolist()) == tail:
                return True
        return False

    def _lengthened(self, seen: _Seen, tokens: Tokens) -> tuple[Ids, Ids]:
        """The ids that would lengthen a repetition, and how long the longest is without them."""
        num_tokens = len(tokens)
        window_len = num_tokens if self._last_n < 0 else min(num_tokens, self._last_n)
        max_len = min(window_len, num_tokens - seen.break_end)
        if window_len <= self._allowed_len or max_len < self._allowed_len:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        start = num_tokens - window_len
        repeats = seen.repeats[start:-1]
        places = np.flatnonzero(repeats >= self._allowed_len)
        # A repetition begins within the window, and behind the last breaker.
        lens = np.minimum(np.minimum(repeats[places], places + 1), max_len)
        places, lens = places[lens >= self._allowed_len], lens[lens >= self._allowed_len]
        ids, idx_of_place = np.unique(tokens[start + places + 1], return_inverse=True)
        longest = np.zeros(len(ids), np.int64)
        np.maximum.at(longest, idx_of_place, lens)
        is_kept = np.array([token_id not in self._breaking_ids for token_id in ids.tolist()], bool)
        return ids[is_kept].astype(np.int64), longest[is_kept]

    def _penalties(self, repeat_lens: Ids) -> npt.NDArray[np.float32]:
        exponents = repeat_lens - self._allowed_len
        if self._base > _FLAT_BASE:
            exponents = np.minimum(exponents, int(_LOG_OF_LARGEST / math.log(self._base)))
        penalties = self._multiplier * self._base ** exponents.astype(np.float64)
        return np.minimum(penalties, _MAX_PENALTY).astype(np.float32)


def suffix_repeats(tokens: Tokens) -> npt.NDArray[np.int32]:
    """`_Seen.repeats` of a whole text, by the Z algorithm: in linear time, whatever repeats."""
    backwards = tokens[::-1].tolist()
    num_tokens = len(backwards)
    lens = [0] * num_tokens
    left = right = 0  # [left, right) repeats the beginning, and reaches farther than all before
    for start in np.flatnonzero(tokens[::-1] == tokens[-1]).tolist()[1:]:
        length = min(right - start, lens[start - left]) if start < right else 0
        while start + length < num_tokens and backwards[length] == backwards[start + length]:
            length += 1
        lens[start] = length
        if start + length > right:
            left, right = start, start + length
    return np.array(lens[::-1], np.int32)


def _next_repeats(repeats: npt.NDArray[np.int32], tokens: Tokens) -> npt.NDArray[np.int32]:
    """The repeats of these tokens, made of those of all but the last."""
    places = np.flatnonzero(tokens[:-1] == tokens[-1])
    grown = np.zeros(len(tokens), np.int32)
    grown[places] = 1
    inner = places[places > 0]
    grown[inner] += repeats[inner - 1]
    return grown
