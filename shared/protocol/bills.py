"""What a request that is over has taken, and who pays: with its result, and in the stream of bills.

A bill holds no word of prompt or answer; `metadata` is what its client sent to be found here again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.errors import MalformedMessage
from shared.protocol.finish import FinishReason

BILL_LEVEL = 4  # the feature level from which on all who work on a request log what it takes


class Bill(msgspec.Struct, frozen=True, omit_defaults=True):
    """One for each request, which is one choice of one prompt; what is 0 or empty may be left out.

    The work of this request is `engine_s` less `repeated_s`: what a crash or a hand-over made
    somebody compute again is told apart.
    """

    rid: str
    group: str  # the id that its client knows; the rid of the first of its choices
    ended_at: float  # unix seconds, by the broker
    reason: FinishReason
    model: str = ""  # name that the client used
    job_class: str = ""
    owner: str = ""  # hash of the tenant's id
    tenant: str = ""
    key: str = ""  # the first hex digits of the key's SHA-256
    metadata: dict[str, str] = {}
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of them came from the prefix cache
    num_computed_tokens: int = 0  # that went through the model, but for what was just made
    num_output_tokens: int = 0
    num_drafted_tokens: int = 0  # guessed
    num_repeated_tokens: int = 0  # of the computed ones
    engine_s: float = 0.0  # its shares of engine steps
    repeated_s: float = 0.0  # of them
    unmeasured_s: float = 0.0  # a worker had it longer than it logged: at most so much is missing
    queue_s: float = 0.0  # until the first claim
    held_s: float = 0.0  # workers had it
    worker: str = ""  # the last that claimed it; "": none has
    device: str = ""
    num_handovers: int = 0
    place: int = 0  # sequence of its end in the token log

    @property
    def is_estimate(self) -> bool:
        """Whether engine time is missing that nobody could log."""
        return self.unmeasured_s > 0

    @property
    def key_in_log(self) -> tuple[int, str]:
        """Bills of a partition are stored in this order: several requests may end in one frame."""
        return self.place, self.rid


class BillBatch(msgspec.Struct, frozen=True):
    """A message of the stream of bills, in JSON: those behind the ones of the message before it."""

    v: int
    partition: int
    first: int  # number of the first one: how many this partition had before
    bills: list[Bill]


class UsageSum(msgspec.Struct, array_like=True):
    """What some bills say together; but for the first its fields are those of a bill."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_drafted_tokens: int = 0
    num_repeated_tokens: int = 0
    engine_s: float = 0.0
    repeated_s: float = 0.0
    unmeasured_s: float = 0.0
    queue_s: float = 0.0
    num_handovers: int = 0

    def add(self, other: Bill | UsageSum, num_requests: int = 1) -> None:
        self.num_requests += num_requests
        self.num_prompt_tokens += other.num_prompt_tokens
        self.num_cached_tokens += other.num_cached_tokens
        self.num_computed_tokens += other.num_computed_tokens
        self.num_output_tokens += other.num_output_tokens
        self.num_drafted_tokens += other.num_drafted_tokens
        self.num_repeated_tokens += other.num_repeated_tokens
        self.engine_s += other.engine_s
        self.repeated_s += other.repeated_s
        self.unmeasured_s += other.unmeasured_s
        self.queue_s += other.queue_s
        self.num_handovers += other.num_handovers


class UsagePart(msgspec.Struct, frozen=True):
    """The sums of one day and a part of the tenants, in KV: whoever sums begins here."""

    stream: str  # when the stream of bills was made: in another one `seq` means nothing
    seq: int  # all bills up to there are in it
    rows: list[tuple[str, str, str, str, UsageSum]]  # owner, tenant, key, model


class UsageHead(msgspec.Struct, frozen=True):
    """How far all parts are; written behind them. Some may be further."""

    stream: str = ""
    seq: int = 0
    next_numbers: dict[str, int] = {}  # by partition, of the next bill
    num_lost: int = 0  # bills that were gone before they were summed


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BillBatch).decode


def encode_bills(batch: BillBatch) -> bytes:
    """JSON, for whoever settles accounts."""
    return _encode(batch)


def decode_bills(data: bytes) -> BillBatch:
    """Raises MalformedMessage."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise MalformedMessage(f"no bills: {str(exc)[:200]}") from exc


BILL_FIELDS = (*Bill.__struct_fields__, "is_estimate")


def bill_cells(bill: Bill) -> dict[str, Any]:
    """Every field, as one cell of a table each."""
    cells = {name: getattr(bill, name) for name in BILL_FIELDS}
    metadata = msgspec.json.encode(bill.metadata).decode()
    return cells | {"reason": bill.reason.value, "metadata": metadata}
