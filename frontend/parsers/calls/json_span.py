"""Where JSON ends in a text that still grows, without reading what it says."""

from __future__ import annotations

import re

SPACE = " \t\r\n"
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,}\]]+")


class JsonSpan:
    """Walks over an object or a list, in pieces, to the bracket that closes it."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False
        self.is_closed = False

    def walk(self, text: str, at: int) -> int:
        """The index behind the closing bracket, or of the end of the text."""
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while at < len(text):
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                return len(text)
            at = match.end()
            match match[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = at == len(text)
                    at = min(at + 1, len(text))
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        self.is_closed = True
                        return at
        return at


def skip_space(text: str, at: int) -> int:
    """The index of the first character from `at` on that is no white space of JSON."""
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def string_end(text: str, at: int) -> int | None:
    """The index behind the string that begins here; None while it is not closed."""
    match = _STRING.match(text, at)
    return None if match is None else match.end()


def value_end(text: str, at: int) -> int | None:
    """The index behind the value that begins here; None while more text could belong to it."""
    if text[at] == '"':
        return string_end(text, at)
    if text[at] in "{[":
        span = JsonSpan()
        end = span.walk(text, at)
        return end if span.is_closed else None
    match = _SCALAR.match(text, at)
    end = at if match is None else match.end()
    return end if end < len(text) else None
