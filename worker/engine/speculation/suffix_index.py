"""Finds the longest end of a sequence that has occurred before, of whatever length."""

from __future__ import annotations

import array
from typing import NamedTuple

from worker.engine.speculation.token_index import cyclic

MAX_NEW_TOKENS = 256  # that one call reads, in less than a millisecond: a prompt takes several
_MAX_LINKS = 8  # of a token's states, those whose last occurrence is noted


class Place(NamedTuple):
    """Where the end of another sequence is found: `length` tokens of it, and no more."""

    state: int
    length: int


NOWHERE = Place(0, 0)


class SuffixIndex:
    """A suffix automaton of one growing sequence: each state is a set of sequences that end alike.

    It guesses as many tokens as the repetition is long: what has gone on for longer goes on for
    longer. A state's occurrence is one of the last, not always the very last.
    """

    def __init__(self, min_len: int) -> None:
        """`min_len`: tokens at the end that must have occurred before."""
        self._min_len = min_len
        # By state: the state behind each token; the one of its longest end that occurs elsewhere,
        # -1 for none; the length of its longest sequence; the index behind an occurrence.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._len = [0]
        self._end = [0]
        self._last = 0  # the state of the whole sequence
        self._num_read = 0
        self._start = 0  # behind the earlier occurrence of what the sequence ends with

    def continuation(self, token_ids: array.array[int], max_tokens: int) -> list[int]:
        end = min(len(token_ids), self._num_read + MAX_NEW_TOKENS)
        for idx in range(self._num_read, end):
            self.add(token_ids[idx])
        if end < len(token_ids):
            return []
        repeated_len = self._len[max(0, self._link[self._last])]
        if repeated_len < self._min_len:
            return []
        return cyclic(token_ids, self._start, min(max_tokens, repeated_len))

    def follow(self, place: Place, token: int) -> Place:
        """Where another sequence is found that goes on with this token."""
        state, length = place
        while state > 0 and length <= self._len[self._link[state]]:
            state = self._link[state]  # it has been divided since
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._len[state]
        behind = self._next[state].get(token)
        return NOWHERE if behind is None else Place(behind, length + 1)

    def end_of(self, place: Place) -> int:
        """The index behind an occurrence of what was found."""
        return self._end[place.state]

    def add(self, token: int) -> None:
        self._num_read += 1
        added = self._new_state({}, -1, self._len[self._last] + 1, self._num_read)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = added
            state = self._link[state]
        self._link[added] = 0 if state < 0 else self._exactly(state, token)
        self._last = added
        self._note_occurrence(self._link[added])

    def _exactly(self, state: int, token: int) -> int:
        """The state of this state's longest sequence and the token, with nothing longer in it."""
        behind = self._next[state][token]
        if self._len[behind] == self._len[state] + 1:
            return behind
        exact = self._new_state(
            self._next[behind].copy(), self._link[behind], self._len[state] + 1, self._end[behind]
        )
        self._link[behind] = exact
        while state >= 0 and self._next[state].get(token) == behind:
            self._next[state][token] = exact
            state = self._link[state]
        return exact

    def _new_state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._len.append(length)
        self._end.append(end)
        return len(self._link) - 1

    def _note_occurrence(self, state: int) -> None:
        """The sequence ends as this state does."""
        self._start = self._end[state]
        for _ in range(_MAX_LINKS):
            if state <= 0:
                return
            self._end[state] = self._num_read
            state = self._link[state]
