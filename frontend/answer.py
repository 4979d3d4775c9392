"""What a transport gets for a request: where its events come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frontend.event_feed import Feed
from frontend.generation import Generation


@dataclass(frozen=True, slots=True)
class Answer:
    """An accepted request, to be sent by a transport and closed afterwards."""

    generation: Generation
    feed: Feed
    stream: bool
    resumed: bool  # the client has seen the opening
    headers: Mapping[str, str]  # of an HTTP response
