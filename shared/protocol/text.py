"""What detokenizers tell frontends."""

from __future__ import annotations

import enum
from zlib import crc32

import msgspec

from shared.protocol.bills import Bill
from shared.protocol.finish import Finish
from shared.protocol.reply import SealedReply
from shared.protocol.token_ids import unpack_token_ids


class TextChunk(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New text of one request."""

    rid: str
    position: int  # output tokens that this text, and all before it, comes from
    offset: int  # code points of text before this chunk
    text: str
    token_ids: list[int] = []  # the new ids, ending at `position`
    finish: Finish | None = None
    logprobs: bytes = b""  # a record for each of `token_ids`, if the request asks
    prompt_logprobs: bytes = b""  # with the first ids, if the request asks
    checksum: int = 0  # of all text before this chunk; 0 where there is none, or nobody told


def checksum(text: str, before: int = 0) -> int:
    """Running checksum: of `text` that follows a text whose checksum is `before`."""
    return crc32(text.encode(), before)


class TextFrame(msgspec.Struct, frozen=True, array_like=True):
    """New text of one log frame, all requests of one reply subject."""

    detok: str
    chunks: list[TextChunk]


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The finished result: `jf.done.<rid>`, written once, kept for the resume window."""

    rid: str
    token_ids: bytes  # little-endian uint32
    text: str
    finish: Finish
    reply: SealedReply | None  # None when it was ended before anybody said where it goes
    logprobs: bytes = b""  # a record for each token, if the request asked
    prompt_logprobs: bytes = b""
    bill: Bill | None = None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """How much of the text of a request somebody has."""

    rid: str
    text_len: int  # code points
    checksum: int  # of these


class ReplayRequest(msgspec.Struct, frozen=True):
    """Asks a detokenizer for the text from `offset` on, and registers `subject` for the rest."""

    rid: str
    offset: int  # code points that the asker has
    subject: str  # "": nobody wants the rest
    # Output tokens that the asker has, who takes the rest in pieces; -1: all at once, from the
    # first token on, as askers do that know no pieces.
    position: int = -1
    # Further requests of the same partition, to be registered, too: is there more of them?
    others: list[Held] = []


class ReplayStatus(enum.StrEnum):
    """What a detokenizer knows of a request."""

    RUNNING = "running"
    DONE = "done"
    QUEUED = "queued"  # in the queue or unknown: nothing is in the log yet


class ReplayReply(msgspec.Struct, frozen=True):
    """The answer: a chunk that starts at the offset asked for (or before), and the reply data."""

    status: ReplayStatus
    reply: SealedReply | None = None
    chunk: TextChunk | None = None
    has_more: bool = False  # behind the chunk: to be asked for from its end on
    # Which of the `others` may have more text than the asker, another one, or a finish: each is to
    # be asked for by itself. None: nobody looked, as earlier builds do.
    changed: list[str] | None = None


def done_chunk(done: Done, offset: int = 0) -> TextChunk:
    """The text from `offset` on, with every token id."""
    token_ids = unpack_token_ids(done.token_ids)
    start = min(offset, len(done.text))
    return TextChunk(
        done.rid,
        len(token_ids),
        start,
        done.text[start:],
        token_ids,
        done.finish,
        done.logprobs,
        done.prompt_logprobs,
        checksum(done.text[:start]),
    )
