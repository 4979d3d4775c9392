"""What comes of the wish to take a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.protocol.dead import Crash
from shared.token_log.ownership import StoredRecord
from worker.held.logged_output import LoggedOutput


@dataclass(frozen=True, slots=True)
class Taken:
    """The claim is stored: the request is ours under `epoch`, to go on after `prefix`."""

    epoch: int
    prefix: LoggedOutput
    crashes: tuple[Crash, ...] = ()  # under it, since it made progress
    before: StoredRecord | None = None  # what the claim stands behind; None: it is the first
    workers: tuple[str, ...] = ()  # that have claimed it, the last ones, in order; ours is the last
    waited_s: float = field(default=0.0, compare=False)  # since it was queued


@dataclass(frozen=True, slots=True)
class Condemned:
    """The claim is stored, and nobody shall run it again."""

    crashes: tuple[Crash, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """The request has its end, or this message is a duplicate of another: acknowledge it."""

    why: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """Somebody alive seems to hold it: give it back, to come again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else claimed after us: say nothing."""


@dataclass(frozen=True, slots=True)
class OtherWeights:
    """The claim is stored, but its tokens were made with a revision that is not ours."""

    epoch: int
    revision: str


TakeResult = Taken | Condemned | Over | Postponed | Lost | OtherWeights
