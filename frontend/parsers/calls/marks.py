"""The marks that set calls of tools apart from content."""

from __future__ import annotations

from typing import NamedTuple


class Marks(NamedTuple):
    """Texts before and after; "" where a form has none."""

    begin: str
    end: str = ""


class MarkSpan:
    """Walks, in pieces, behind the mark that closes a call; what lies before it says nothing.

    Where the next call begins before that, the model forgot to close this one.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.is_closed = False

    def walk(self, text: str, at: int) -> int:
        """The index behind the closing mark, or of what may become a mark."""
        begin, end = self._marks
        end_at, begin_at = text.find(end, at), text.find(begin, at)
        self.is_closed = end_at >= 0 or begin_at >= 0
        if begin_at >= 0 and (end_at < 0 or begin_at < end_at):
            return begin_at
        if end_at < 0:
            return min(possible_mark(text, at, mark) for mark in self._marks)
        return end_at + len(end)


def possible_mark(text: str, at: int, mark: str) -> int:
    """Where the end of a text may be the beginning of a mark; the text's length if nowhere."""
    for begin in range(max(at, len(text) - len(mark) + 1), len(text)):
        if text.startswith(mark[0], begin) and mark.startswith(text[begin:]):
            return begin
    return len(text)
