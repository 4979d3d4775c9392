"""What roles tell each other beside the log: nothing is lost with it."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class Cancel(msgspec.Struct, frozen=True, tag_field="t", tag="cancel"):
    """`jf.ctl.<pool>.cancel`: the request has an `end`; drop it."""

    rid: str


class Fenced(msgspec.Struct, frozen=True, tag_field="t", tag="fenced"):
    """`jf.ctl.<pool>.fenced`: this epoch of the request belongs to the past."""

    rid: str
    epoch: int
    worker: str


ControlMessage: TypeAlias = Cancel | Fenced


class PrefixNotice(msgspec.Struct, frozen=True):
    """`jf.ctl.<pool>.prefixes`: what a worker has computed lately."""

    worker: str
    hashes: bytes  # of prefix chains, joined
    sessions: bytes = b""  # hashes of those that it serves now, and another one did before


class OfferKind(enum.StrEnum):
    """What a worker asks of another."""

    PREFIX = "prefix"  # it has more of the prompt: to claim it first
    ROOM = "room"  # to keep a place for it: "taken" is a promise, which soon expires
    RELEASED = "released"  # its prompt is computed, and its release stored: to go on with it


class Offer(msgspec.Struct, frozen=True):
    """A delivery that another worker shall care for: `jf.ctl.<pool>.offer.<worker>`.

    With the ack subject goes all that the server knows of the delivery. The load is the offering
    worker's, to be compared with that of the other one.
    """

    data: bytes  # the request as it was queued
    ack_subject: str
    rid: str
    num_blocks: int  # of its prefix chain that the offering worker has itself
    num_active: int  # requests that it runs
    num_prefill_tokens: int  # prompt tokens that are before it
    kind: OfferKind = OfferKind.PREFIX


class OfferVerdict(enum.StrEnum):
    """The answer to an offer."""

    TAKEN = "taken"  # claimed, or found to be over: the offering worker has nothing to do with it
    FULL = "full"  # no room, or so much less of it that computing the prefix again is quicker
    UNKNOWN = "unknown"  # the prefix is not here any more
    LEAVING = "leaving"  # it takes nothing more


class OfferAnswer(msgspec.Struct, frozen=True):
    """What becomes of an offered request."""

    verdict: OfferVerdict


class PagesKey(msgspec.Struct, frozen=True):
    """What a worker proves and wants proved on its connections for pages."""

    key: bytes


class NodeHello(msgspec.Struct, frozen=True):
    """`jf.ctl.<pool>.nodes.<group>`: a host would compute its share of a model with the others."""

    node: str  # the incarnation
    node_rank: int  # 0: would be the first, which plans for all
    host: str
    version: str  # of jetflock
    revision: str  # of the weights
    settings: str  # of its engine, JSON


class NodeAnswer(msgspec.Struct, frozen=True):
    """Where its ranks are awaited, why not yet, or why never."""

    node: str = ""  # who says so
    address: str = ""
    port: int = 0
    secret: bytes = b""  # of this start
    settings: str = ""  # of all ranks, JSON
    why_not_yet: str = ""
    why_never: str = ""


class TenantCost(msgspec.Struct, frozen=True):
    """`jf.ctl.costs`: what was made for a request that is over, whoever has read it."""

    owner: str  # of the request
    num_tokens: int  # of its output


class TenantUse(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a tenant has and had at one frontend."""

    tenant: str
    num_outstanding: tuple[int, ...] = ()  # requests that wait or run, by class
    serial: int = 0  # of the times that its limits were untouched: the counts start anew there
    num_requests: int = 0  # let in since
    num_tokens: int = 0  # prompt and output tokens of the same
    request_level: float | None = None  # what is left of the minute's requests, as it knows
    token_level: float | None = None


class TenantGossip(msgspec.Struct, frozen=True):
    """`jf.ctl.tenants`: all that a frontend has to tell of its tenants."""

    frontend: str
    uses: list[TenantUse]
