"""What a transport gets for a request: where its events come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from frontend.streams.generation import Generation
from frontend.surfaces.event_feed import Feed


class AnswerKeeper(Protocol):
    """Who has opened an answer."""

    def keep_alive(self, generation: Generation, interval_s: float) -> None: ...

    def close(self, answer: Answer, status: int, transport: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An accepted request, to be sent by a transport and closed afterwards."""

    generation: Generation
    feed: Feed
    stream: bool
    resumed: bool  # the client has seen the opening
    headers: Mapping[str, str]  # of an HTTP response
    _keeper: AnswerKeeper

    def keep_alive(self, interval_s: float) -> None:
        """Something was sent: let the feed say when nothing was for so long."""
        self._keeper.keep_alive(self.generation, interval_s)

    def close(self, status: int, transport: str) -> None:
        """The transport is done with it: nobody reads it here any more."""
        self._keeper.close(self, status, transport)
