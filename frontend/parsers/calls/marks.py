"""The marks that set calls of tools apart from content."""

from __future__ import annotations

from typing import NamedTuple


class Marks(NamedTuple):
    """Texts before and after; "" where a form has none."""

    begin: str
    end: str = ""


class MarkSpan:
    """Walks, in pieces, behind the mark that closes a call; what lies before it says nothing.

    Where something else begins before that, the model forgot to close the call.
    """

    def __init__(self, end: str, *others: str) -> None:
        """`others`: marks of what cannot stand inside a call."""
        self._end = end
        self._others = others
        self.is_closed = False

    def walk(self, text: str, at: int) -> int:
        """The index behind the closing mark, or of another, or of what may become a mark."""
        marks = (self._end, *self._others)
        found = [(begin, mark) for mark in marks if (begin := text.find(mark, at)) >= 0]
        if not found:
            return min(possible_mark(text, at, mark) for mark in marks)
        self.is_closed = True
        begin, mark = min(found)
        return begin + len(mark) if mark == self._end else begin


def possible_mark(text: str, at: int, mark: str) -> int:
    """Where the end of a text may be the beginning of a mark; the text's length if nowhere."""
    for begin in range(max(at, len(text) - len(mark) + 1), len(text)):
        if text.startswith(mark[0], begin) and mark.startswith(text[begin:]):
            return begin
    return len(text)
