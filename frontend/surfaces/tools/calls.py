"""The arguments of a call, JSON within a text; and its id, the same whoever tells of it."""

from __future__ import annotations

import hashlib
from typing import Any

import jiter
import msgspec

from frontend.parsers.tool_parsers import TOOL_PARSERS

_ID_LEN = 24


class InvalidJson(ValueError):
    """It is none, or more deeply nested than anybody calls a function with."""


def read_arguments(text: str) -> Any:
    """The arguments of a call that a client hands back: nothing that could not be sent on, as lone
    surrogates and NaN. Raises InvalidJson.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidJson(str(exc)) from exc


def arguments_so_far(written: str) -> Any:
    """The arguments of a call that the model has made: where it was cut, what is there."""
    try:
        return jiter.from_json(written.encode(), partial_mode=True) if written else {}
    except ValueError:  # no JSON: the model was free to write what it liked
        return {}


def call_id(rid: str, idx: int, parser: str | None) -> str:
    """The id of one call of a request. `parser`: the name of the one that read it."""
    digest = hashlib.sha256(f"{rid}.{idx}".encode()).hexdigest()
    only_len = None if parser is None else TOOL_PARSERS.stored(parser).call_id_len
    return f"call_{digest[:_ID_LEN]}" if only_len is None else digest[:only_len]
