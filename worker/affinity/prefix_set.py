"""Prefixes that one worker has, as far as somebody knows."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence


class PrefixSet:
    """At most `max_blocks` chain hashes; the least recently used are forgotten first.

    Those that are kept, `max_kept` and half of all at most, are so when their time is over.
    """

    def __init__(
        self, max_blocks: int, max_kept: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_blocks = max_blocks
        self._max_kept = min(max_kept, max_blocks // 2)
        self._clock = clock
        self._hashes: OrderedDict[bytes, None] = OrderedDict()  # the latest used last
        self._kept: OrderedDict[bytes, float] = OrderedDict()  # until when; the latest asked last

    def __len__(self) -> int:
        return len(self._hashes)

    def resize(self, max_blocks: int, max_kept: int = 0) -> None:
        self.max_blocks = max_blocks
        self._max_kept = min(max_kept, max_blocks // 2)
        self._forget_surplus()

    def clear(self) -> None:
        self._hashes.clear()
        self._kept.clear()

    def keep(self, hashes: Sequence[bytes], until: float) -> None:
        """Of a chain that was added: it is forgotten later than by use."""
        for each in reversed(hashes):
            if each in self._hashes:
                self._kept[each] = max(until, self._kept.pop(each, 0.0))
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def add(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Mark a chain as used; returns what was not there and is now."""
        new = [each for each in hashes if each not in self._hashes]
        for each in reversed(hashes):  # the root last: what a chain loses first is its end
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        self._forget_surplus()
        return [each for each in new if each in self._hashes]

    def discard(self, hashes: Sequence[bytes]) -> None:
        for each in hashes:
            self._hashes.pop(each, None)
            self._kept.pop(each, None)

    def num_matching(self, hashes: Sequence[bytes]) -> int:
        """Blocks of a chain that are here: the longest known prefix, as a rule.

        Looks at few of them. Where the chain's beginning was forgotten it may find less, and it
        never finds more: the hash of the last block that it counts is here.
        """
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._hashes:
                low = middle
            else:
                high = middle - 1
        return low

    def recent(self, max_blocks: int) -> list[bytes]:
        """The latest used first."""
        return list(itertools.islice(reversed(self._hashes), max_blocks))

    def _forget_surplus(self) -> None:
        while len(self._hashes) > self.max_blocks:
            oldest, _ = self._hashes.popitem(last=False)
            if len(self._kept) < len(self._hashes) and self._kept.get(oldest, 0.0) > self._clock():
                self._hashes[oldest] = None  # once more round
            else:
                self._kept.pop(oldest, None)
