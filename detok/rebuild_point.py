"""Where a reader must start to understand one running request."""

from __future__ import annotations


class RebuildPoint:
    """The latest sequence from which all tokens of a request can be folded again.

    An entry at position 0 only opens a candidate: a writer restates over several frames, and may
    die in between. The candidate replaces `seq` once a fold that started there would hold every
    token known here. Behind a claim nothing counts before its own entry at position 0.
    """

    __slots__ = ("_candidate", "_candidate_len", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self._candidate = 0  # sequence of its first message; 0: none
        self._candidate_len = 0  # tokens that a fold from the candidate on would hold

    @property
    def is_restating(self) -> bool:
        return self._candidate != 0

    def restart_at(self, seq: int) -> None:
        """Nothing before `seq` was read here."""
        self.seq, self._candidate = seq, 0

    def on_claim(self, seq: int, num_tokens: int) -> None:
        """A claim at `seq` was folded while `num_tokens` tokens were known."""
        if not num_tokens:
            self.seq = seq

    def on_counted_entry(self, seq: int, position: int, end: int, num_tokens: int) -> None:
        """Only entries that counted: those at position 0, and all while `is_restating`."""
        if position == 0:
            self._candidate, self._candidate_len = seq, end
        elif position <= self._candidate_len:
            self._candidate_len = max(self._candidate_len, end)
        if self._candidate and self._candidate_len >= num_tokens:
            self.seq, self._candidate = self._candidate, 0
