"""The fields of a body that its route does not know."""

from __future__ import annotations

import difflib
import urllib.parse
from collections.abc import Collection

from shared.errors import UnknownField

HEADER = "x-unknown-fields"
MAX_TOLD = 16
MAX_NAME_CHARS = 64
_SIMILARITY = 0.6


class UnknownFields:
    """The unknown fields of one request: they have no effect, which its client is told; or they are
    refused.
    """

    def __init__(self, *, are_refused: bool = False) -> None:
        self._are_refused = are_refused
        self._names: list[str] = []

    def meet(self, name: str, known: Collection[str]) -> None:
        """`known`: what the route knows. Raises UnknownField where they are refused."""
        if self._are_refused:
            raise UnknownField(name[:MAX_NAME_CHARS], nearest(name, known))
        if name not in self._names:
            self._names.append(name)

    def headers(self) -> dict[str, str]:
        """The headers of the answer: none where all is known."""
        if not self._names:
            return {}
        told = [urllib.parse.quote(name[:MAX_NAME_CHARS]) for name in self._names[:MAX_TOLD]]
        more = ["..."] if len(self._names) > MAX_TOLD else []
        return {HEADER: ", ".join(told + more)}


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was meant, perhaps."""
    found = difflib.get_close_matches(name[:MAX_NAME_CHARS], sorted(known), 1, _SIMILARITY)
    return found[0] if found else None
