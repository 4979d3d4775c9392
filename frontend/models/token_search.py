"""Which tokens of a vocabulary have some text in them, or end with it."""

from __future__ import annotations

import array
import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from frontend.text.token_texts import TokenTexts

_END = b"\xff"  # in no text: of tokens, one that is a single byte may have it


class _Joined(NamedTuple):
    """The bytes of all tokens, each with `_END` behind it."""

    data: bytes
    ends: array.array[int]  # of each token, without `_END`


class TokenSearch:
    """Searches the tokens of one tokenizer.

    The first search takes a while, the others less than a millisecond each.
    """

    def __init__(self, texts: TokenTexts, vocab_size: int) -> None:
        self._texts = texts
        self._vocab_size = vocab_size

    @functools.cached_property
    def _joined(self) -> _Joined:
        tokens = [self._texts.compute_bytes(token_id) for token_id in range(self._vocab_size)]
        ends = accumulate(len(token) + len(_END) for token in tokens)
        return _Joined(
            b"".join(token + _END for token in tokens),
            array.array("q", (end - len(_END) for end in ends)),
        )

    def num_containing(self, text: bytes) -> int:
        """The number of such tokens, or more: a token that has it twice counts twice."""
        return self._joined.data.count(text)

    def containing(self, text: bytes) -> list[int]:
        """Rising ids."""
        ends = self._joined.ends
        return sorted({bisect_right(ends, place) for place in self._places(text)})

    def ending_with(self, text: bytes) -> list[int]:
        """Rising ids."""
        ends = self._joined.ends
        found = (place + len(text) for place in self._places(text + _END))
        owners = ((bisect_left(ends, end), end) for end in found)
        return [owner for owner, end in owners if ends[owner] == end]

    def _places(self, text: bytes) -> Iterator[int]:
        """Where it begins in the data; rising."""
        data = self._joined.data
        place = data.find(text)
        while place >= 0:
            yield place
            place = data.find(text, place + 1)
