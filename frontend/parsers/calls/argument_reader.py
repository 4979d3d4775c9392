"""Reads the arguments of one call as they come, and tells them as JSON."""

from __future__ import annotations

from typing import Protocol

from frontend.parsers.calls.json_span import JsonSpan


class ArgumentReader(Protocol):
    """The pieces in which the text comes change nothing of what is told altogether."""

    is_verbatim: bool  # what is told is the text itself
    is_closed: bool  # no more of them comes

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where that ends; "" while it is open."""
        ...


class JsonArguments:
    """An object in JSON: told as the model writes it, character by character."""

    is_verbatim = True

    def __init__(self) -> None:
        self._span = JsonSpan()
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        end = self._span.walk(text, at)
        self.is_closed = self._span.is_closed
        return text[at:end], end
