"""The beginning of a call: what must be read before its arguments can be told."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from frontend.models.json_span import skip_space, string_end, value_end
from frontend.models.tagged_arguments import FUNCTION
from frontend.models.tool_marks import ARGS, CALL_ID

ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("id", "type", "function")  # a function may be named under `function`
_NAME = re.compile(r"[A-Za-z0-9_.:-]*")
_ID = re.compile(r"[A-Za-z0-9_-]*")


class CallHead(NamedTuple):
    """A call has begun. The text goes on at `at`: with the arguments, or behind them."""

    name: str
    at: int
    arguments: str | None  # where they came before the name, or there are none
    in_object: bool = True  # which is still open behind the arguments


class NoCall:
    """The text is something else."""


def json_head(text: str, at: int, names: Collection[str]) -> CallHead | NoCall | None:
    """Of an object that begins here; None while that is open.

    `names`: those that a call may have; empty for any.
    """
    name, arguments = "", None
    at = skip_space(text, at)
    if at < len(text) and text[at] != "{":
        return NoCall()
    at = skip_space(text, at + 1)
    while at < len(text):
        if text[at] == "}" and name:
            return CallHead(name, at, arguments or "{}")
        if text[at] != '"':
            return NoCall()
        key_end = string_end(text, at)
        if key_end is None:
            return None
        key = text[at + 1 : key_end - 1]
        if key not in ("name", *ARGUMENT_KEYS, *_OTHER_KEYS):
            return NoCall()
        at = skip_space(text, key_end)
        if at < len(text) and text[at] != ":":
            return NoCall()
        at = skip_space(text, at + 1)
        if at >= len(text):
            return None
        if key in ARGUMENT_KEYS and text[at] != "{":
            return NoCall()
        if key in ARGUMENT_KEYS and name:
            return CallHead(name, at, None)
        end = value_end(text, at)
        if end is None:
            return None
        if key in ARGUMENT_KEYS:
            arguments = text[at:end]
        elif key == "name" or (key == "function" and text[at] == '"'):
            name = _string(text[at:end])
            if not name or (names and name not in names):
                return NoCall()
            if arguments is not None:
                return CallHead(name, end, arguments)
        at = skip_space(text, end)
        if at < len(text) and text[at] not in ",}":
            return NoCall()
        if at < len(text) and text[at] == ",":
            at = skip_space(text, at + 1)
    return None


def named_head(text: str, at: int) -> CallHead | NoCall | None:
    """Of `name{`, `name[ARGS]{` or `name[CALL_ID]id[ARGS]{`; None while that is open."""
    at = skip_space(text, at)
    end = _end_of(_NAME, text, at)
    name, at = text[at:end], end
    if at >= len(text):
        return None
    if not name:
        return NoCall()
    for mark in (CALL_ID, ARGS):
        if mark.startswith(text[at : at + len(mark)]):
            if len(text) < at + len(mark):
                return None
            at += len(mark)
            if mark == CALL_ID:
                at = _end_of(_ID, text, at)
    at = skip_space(text, at)
    if at >= len(text):
        return None
    return CallHead(name, at, None, in_object=False) if text[at] == "{" else NoCall()


def tagged_head(text: str, at: int) -> CallHead | NoCall | None:
    """Of `<function=name>`; None while that is open."""
    end = text.find(">", at)
    if end < 0 and (FUNCTION.startswith(text[at:]) or text.startswith(FUNCTION, at)):
        name_end = _end_of(_NAME, text, min(len(text), at + len(FUNCTION)))
        return None if name_end == len(text) else NoCall()
    name = text[at + len(FUNCTION) : end]
    if not text.startswith(FUNCTION, at) or not _NAME.fullmatch(name) or not name:
        return NoCall()
    return CallHead(name, end + 1, None, in_object=False)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _string(text: str) -> str:
    """What a string of JSON says; "" when it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
