"""The beginning of a call: what must be read before its arguments can be told."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from frontend.parsers.calls.json_span import skip_space, string_end, value_end

ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("id", "type", "function")  # a function may be named under `function`
_NAME = re.compile(r"[A-Za-z0-9_.:-]*")


class CallHead(NamedTuple):
    """A call has begun. The text goes on at `at`: with the arguments, or behind them."""

    name: str
    at: int
    arguments: str | None  # where they came before the name, or there are none
    in_object: bool = True  # which is still open behind the arguments
    in_list: bool = False  # more calls may follow before it is closed


class NoCall:
    """The text is something else."""


class ListEnd(NamedTuple):
    """A list of calls is closed. The text goes on at `at`."""

    at: int


Head = CallHead | NoCall | None  # None: more text is needed


def name_end(text: str, at: int) -> int:
    """Where the name of a function that begins here ends."""
    match = _NAME.match(text, at)
    return at if match is None else match.end()


def end_mark(text: str, at: int, mark: str) -> Head | ListEnd:
    """What closes a list behind its bracket."""
    if text.startswith(mark, at):
        return ListEnd(at + len(mark))
    return None if mark.startswith(text[at:]) else NoCall()


def json_calls(text: str, at: int, names: Collection[str]) -> Head:
    """The first of a list of objects that begins here, or of a single one."""
    in_list = text[at] == "["
    head = json_head(text, at + in_list, names)
    return head._replace(in_list=True) if in_list and isinstance(head, CallHead) else head


def next_json_call(text: str, at: int, names: Collection[str], *, in_list: bool) -> Head:
    """What follows an object, with or without a comma."""
    if text[at] in ",;":
        at = skip_space(text, at + 1)
    if at == len(text):
        return None
    head = json_head(text, at, names)
    return head._replace(in_list=in_list) if isinstance(head, CallHead) else head


def json_head(text: str, at: int, names: Collection[str]) -> Head:
    """The head of an object that begins here; None while that is open.

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


def _string(text: str) -> str:
    """What a string of JSON says; "" when it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
