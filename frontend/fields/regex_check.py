"""Bounds of regular expressions and grammars, seen from their text alone."""

from __future__ import annotations

import re

from shared.errors import InvalidRequest

MAX_REGEX_CHARS = 16 * 1024
MAX_DEPTH = 50
MAX_EXPANDED = 20_000  # characters, once counted repetitions are written out

_REPETITION = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_MAX_COUNT_DIGITS = 9


def check_regex(text: str, param: str) -> None:
    """Raises InvalidRequest for one that is too long, too deep, or repeats too much.

    Whether it is well formed at all, the library tells. Reads EBNF as well: what counts there is
    the same.
    """
    if len(text) > MAX_REGEX_CHARS:
        raise InvalidRequest(
            f"'{param}' has {len(text)} characters, at most {MAX_REGEX_CHARS}", param=param
        )
    if (num_expanded := expanded_len(text, param)) > MAX_EXPANDED:
        raise InvalidRequest(
            f"'{param}' repeats too much: it has {num_expanded} characters when its counted "
            f"repetitions are written out, at most {MAX_EXPANDED}",
            param=param,
        )


def expanded_len(text: str, param: str) -> int:
    """How long it is with x{3} written as xxx. Raises InvalidRequest when it is too deep."""
    totals, last = [0], 0  # of each open group, and of the last item
    pos = 0
    while pos < len(text):
        char = text[pos]
        repetition = _REPETITION.match(text, pos) if char == "{" else None
        if repetition is not None:
            count = _count(repetition)
            totals[-1] += last * (count - 1)
            last *= count
            pos = repetition.end()
            continue
        end = _item_end(text, pos)
        if char == "(":
            totals.append(0)
            if len(totals) > MAX_DEPTH:
                raise InvalidRequest(
                    f"'{param}' has more than {MAX_DEPTH} nested groups", param=param
                )
        elif char == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif char not in "*+?|":
            last = 1
            totals[-1] += 1
        pos = end
    return sum(totals)


def _count(repetition: re.Match[str]) -> int:
    low, high = repetition[1] or "0", repetition[3] or "0"
    if max(len(low), len(high)) > _MAX_COUNT_DIGITS:
        return int(10**_MAX_COUNT_DIGITS)
    return max(int(low), int(high), 1)


def _item_end(text: str, pos: int) -> int:
    """The index behind an escape, a character class, or a single character."""
    if text[pos] == "\\":
        return pos + 2
    if text[pos] != "[":
        return pos + 1
    end = pos + 1
    if text[end : end + 1] == "^":
        end += 1
    if text[end : end + 1] == "]":
        end += 1
    while end < len(text) and text[end] != "]":
        end += 2 if text[end] == "\\" else 1
    return end + 1
