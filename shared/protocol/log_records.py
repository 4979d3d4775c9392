"""What stands in the log: who owns a request, and its tokens."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shared.protocol.fields import Place, TokenId
from shared.protocol.finish import Cost, Finish, FinishReason
from shared.protocol.reply import SealedReply, TextParams

_ACKED_BY_READER_LEVEL = 4  # before, a worker acknowledges what it has finished


class Claim(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="claim"):
    """A worker takes a request. The sequence at which it is stored is the epoch."""

    prev: int  # the CAS value: sequence of the ownership record before, 0 for the first
    worker: str  # incarnation, never reused
    nonce: str  # one a delivery, kept over retries
    request_seq: int  # of the message in REQUESTS: tells the canonical one from duplicates
    ack_subject: str  # whoever sees the worker dead may nak here
    tokenizer_hash: str
    text: TextParams
    reply: SealedReply
    pool: str
    after_death: bool = False  # the heartbeat of the claim's worker before was absent by now
    is_alone: bool = False  # the worker runs nothing else until this one has made progress
    revision: str = ""  # of the weights that this worker computes with; "": the request's
    level: int = 1  # in force when it was written: who knows less leaves the request alone
    device: str = ""  # that it computes on, as its maker calls it; "": processors
    num_given: int = 0  # tokens at the beginning of its output that nobody made: those of a fork

    @property
    def is_acked_by_reader(self) -> bool:
        """Whether a finish under it is acknowledged by the detokenizer that reads it."""
        return self.level >= _ACKED_BY_READER_LEVEL


class Release(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="release"):
    """A worker hands a request back."""

    prev: int
    worker: str
    progressed: bool = False  # whether this epoch logged a token beyond its prefix
    crashed: bool = False  # released because the engine died under it
    pinned: str = ""  # set: the revision that its tokens were made with, which is not the worker's
    level: int = 1
    cost: Cost | None = None  # up to now
    pages: str = ""  # where keys and values of its text are, or will be: a hint, as in `WorkerCard`
    num_cached_tokens: Place | None = None  # of its prompt, for its first run; None: none has begun


class End(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="end"):
    """Somebody other than the engine ends a request."""

    prev: int
    reason: FinishReason
    by: str
    message: str | None = None
    reply: SealedReply | None = None  # set when no claim may have told it
    level: int = 1
    cost: Cost | None = None  # up to now, where its worker ends it


OwnershipRecord: TypeAlias = Claim | Release | End


class Restatement(msgspec.Struct, frozen=True, array_like=True):
    """What the writer knows as it starts again at position 0: how far back a reader must go."""

    num_tokens: Place  # that this entry and those behind it restate: no entry before had more
    num_prefix: Place  # of them were logged by earlier epochs
    progress_epoch: Place  # the last of those that logged a new token; 0: none has


class TokenEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New ids of one request."""

    rid: str
    epoch: Place  # stream sequence of the claim under which these ids were made
    position: Place  # index of the first id among the request's output tokens
    token_ids: list[TokenId]
    finish: Finish | None = None  # set once, on the last entry
    logprobs: bytes = b""  # a record of `shared.protocol.logprobs` for each id, if the request asks
    prompt_logprobs: bytes = b""  # at position 0: of the whole prompt, if the request asks
    restates: Restatement | None = None  # at position 0
    cost: Cost | None = None  # up to now: at position 0, with the finish, and now and then


class TokenFrame(msgspec.Struct, frozen=True, array_like=True):
    """New ids of one engine step, all requests of one partition: `jf.tok.<p>.<worker>`."""

    worker: str
    number: int  # counts this worker's frames in this partition, from 1; a resend keeps it
    entries: list[TokenEntry]
    # Where the last frame was confirmed when this one was made: every copy of a later one of this
    # worker lies beyond it. 0: nowhere yet.
    confirmed_seq: Place = 0
