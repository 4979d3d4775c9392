"""How large a step is, or the steps that a CUDA graph runs."""

from __future__ import annotations

from typing import NamedTuple, Self

MIN_CHUNKS = 4
TOKENS_PER_CHUNK = 8  # on average, at least


class StepShape(NamedTuple):
    """Rows are requests: those that decode first, then chunks of several tokens."""

    num_tokens: int
    num_rows: int
    num_decode: int

    @classmethod
    def of_decode(cls, num_rows: int) -> Self:
        """Of a graph for rows of one token."""
        return cls(num_rows, num_rows, num_rows)

    @classmethod
    def of_tokens(cls, num_tokens: int, max_running: int) -> Self:
        """Of a graph for any rows that have no more tokens together. The last row is of padding.

        Rows that no request has cost little, but not nothing: chunks of prefill are few, guesses
        make small ones.
        """
        num_decode = min(num_tokens, max_running)
        num_chunks = min(max_running, max(MIN_CHUNKS, num_tokens // TOKENS_PER_CHUNK))
        return cls(num_tokens, num_decode + num_chunks + 1, num_decode)

    @property
    def is_decode(self) -> bool:
        return self.num_decode == self.num_rows

    def has_room(self, other: StepShape) -> bool:
        """As a graph, for a step. Its tokens may be too many for a row of padding beside it."""
        num_padding_rows = 0 if self.is_decode else 1
        num_chunks = self.num_rows - self.num_decode - num_padding_rows
        return (
            other.num_tokens <= self.num_tokens
            and other.num_decode <= self.num_decode
            and other.num_rows - other.num_decode <= num_chunks
        )
