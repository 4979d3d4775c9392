"""What of a request is stored, as far as erasing it needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from shared.protocol.request import GenerateRequest


class TracedReply(msgspec.Struct, frozen=True):
    """Of reply data, whoever wrote it."""

    owner: str = ""
    group_id: str = ""
    num_choices: int = 1
    is_shared: bool = False  # it has an idempotency key


class TracedRecord(msgspec.Struct, frozen=True):
    """A claim, an end, a result, a kept response or a request, of any version."""

    reply: TracedReply | None = None
    rid: str = ""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A message in the queue."""

    seq: int
    request: GenerateRequest


@dataclass(slots=True)
class Trace:
    """One request, and where it was found beside the subjects that bear its id."""

    rid: str
    reply: TracedReply
    queued: list[QueuedRequest] = field(default_factory=list)
    dead_seqs: list[int] = field(default_factory=list)
