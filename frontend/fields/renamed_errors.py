"""Errors of an API that is read as another one: they name what the client has sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.errors import RequestError


@contextmanager
def renamed_errors(renamed: Callable[[str], str]) -> Iterator[None]:
    """Apply `renamed` to the message and to the field, which is in quotes as it is there."""
    try:
        yield
    except RequestError as exc:
        exc.message = renamed(exc.message)
        exc.args = (exc.message,)
        if exc.param is not None:
            exc.param = renamed(f"'{exc.param}'")[1:-1]
        raise
