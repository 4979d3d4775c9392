"""What the flow of a claim asks for, and what it comes to."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.protocol.dead import Crash
from shared.protocol.finish import NO_COST, Cost
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.prompt_object import PromptData
from shared.token_log.ownership import StoredRecord
from worker.held.held_request import LoggedOutput


class Look(enum.Enum):
    """A question that says all by its name; the flow's method of that name takes the answer, as
    `on_adapter`.
    """

    TAKERS = "takers"  # whether another worker takes its images or embeddings, or soon will
    ADAPTER = "adapter"  # whether the engine has it; it may have to be loaded
    RECORDS = "records"  # the request's ownership log, whole
    LAST = "last"  # the last record of it
    RESULT = "result"  # whether there is one
    OVERDUE = "overdue"  # whether it has waited too long; fails where that cannot be told
    WAITED = "waited"  # for how long it has; 0 where that cannot be told now


@dataclass(frozen=True, slots=True)
class WhoServes:
    """Whether a worker with one of these revisions takes requests, or soon will."""

    revisions: frozenset[str]


@dataclass(frozen=True, slots=True)
class WhoHolds:
    """Whether the worker of this claim is dead, as far as its heartbeat tells."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class AgeOf:
    """How long ago this record was stored, in seconds by the server's clock."""

    stored: StoredRecord


@dataclass(frozen=True, slots=True)
class ReadPast:
    """What the token log says of the request up to our claim, given the records before it."""

    records: list[StoredRecord]
    claim_seq: int


@dataclass(frozen=True, slots=True)
class StoreClaim:
    """Behind the record that it names, and nowhere else."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class StoreEnd:
    """Behind the record that it names; where the claim `is_ours`, behind whatever is last. Then the
    request is `over`.
    """

    end: End
    over: Over
    revision: str = ""  # of weights that no worker has any more
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """The claim is stored: the request is ours under `epoch`, to go on after `prefix`.

    What it lacks to run is its prompt.
    """

    epoch: int
    prefix: LoggedOutput
    crashes: tuple[Crash, ...] = ()  # under it, since it made progress
    before: StoredRecord | None = None  # what the claim stands behind; None: it is the first
    workers: tuple[str, ...] = ()  # that have claimed it, the last ones, in order; ours is the last
    waited_s: float = field(default=0.0, compare=False)  # since it was queued
    is_acked_by_reader: bool = False  # its finish, by the level of the claim
    cost: Cost = field(default=NO_COST, compare=False)  # of what was before
    num_cached_tokens: int | None = field(default=None, compare=False)  # as a release told

    @property
    def pages(self) -> str:
        """Where its text's were put, as who released it says."""
        record = None if self.before is None else self.before.record
        return record.pages if isinstance(record, Release) else ""


@dataclass(frozen=True, slots=True)
class Isolate:
    """Workers died under it: it needs this one for itself, which another suspect may have so."""

    crashes: tuple[Crash, ...]


@dataclass(frozen=True, slots=True)
class SeeRoom:
    """Whether it may run now, after all that happened while its claim was on its way."""


@dataclass(frozen=True, slots=True)
class Run:
    """It goes on here, now."""

    taken: Taken
    prompt: PromptData


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The claim is stored, and nobody shall run it again."""

    crashes: tuple[Crash, ...]
    cost: Cost = field(default=NO_COST, compare=False)


@dataclass(frozen=True, slots=True)
class Over:
    """The request has its end, or this message is a duplicate of another: acknowledge it."""

    why: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """It has come to no claim of ours: give it back, to come again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else claimed after us: say nothing."""


@dataclass(frozen=True, slots=True)
class OtherWeights:
    """The claim is stored, but its tokens were made with a revision that is not ours."""

    epoch: int
    revision: str
    delay_s: float = 0.5  # a worker that has them may have room now


@dataclass(frozen=True, slots=True)
class Released:
    """The claim is stored, and it cannot run here now: release it."""

    epoch: int
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The claim is stored, and nobody can ever run it: end it with an error."""

    message: str


Question = Look | WhoServes | WhoHolds | AgeOf | ReadPast | StoreClaim | StoreEnd  # to the broker
Ending = Run | GivenUp | Over | Postponed | Lost | OtherWeights | Released | Failed
ClaimStep = Question | Taken | Isolate | SeeRoom | Ending
