"""What a transport gets for a request: where its events come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from frontend.streams.generation import Generation
from frontend.surfaces.event_feed import Feed


@dataclass(frozen=True, slots=True)
class Answer:
    """An accepted request, to be sent by a transport and closed afterwards."""

    generation: Generation
    feed: Feed
    stream: bool
    resumed: bool  # the client has seen the opening
    headers: Mapping[str, str]  # of an HTTP response
    _closed_by: Callable[[Answer, int, str], None]  # who opened it

    def close(self, status: int, transport: str) -> None:
        """The transport is done with it: nobody reads it here any more."""
        self._closed_by(self, status, transport)
