"""The arguments of a tool call: JSON within a text."""

from __future__ import annotations

from typing import Any

import jiter
import msgspec


class InvalidJson(ValueError):
    """It is none, or more deeply nested than anybody calls a function with."""


def read_arguments(text: str) -> Any:
    """Of a call that a client hands back: nothing that could not be sent on, as lone surrogates
    and NaN. Raises InvalidJson.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidJson(str(exc)) from exc


def arguments_so_far(written: str) -> Any:
    """Of a call that the model has made: where it was cut, what is there."""
    try:
        return jiter.from_json(written.encode(), partial_mode=True) if written else {}
    except ValueError:  # no JSON: the model was free to write what it liked
        return {}
