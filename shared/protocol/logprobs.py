"""Logprobs on the wire: one record of a fixed size for each token, little-endian.

A record is (token id, rank, logprob), then the ids of the alternatives, then their logprobs; four
bytes each. Alternatives are the likeliest tokens, then those that the request names. All are of the
model's own distribution, before any sampling parameter.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shared.errors import MalformedMessage

MAX_TOP_LOGPROBS = 20
NO_RANK = 0  # of the first token of a prompt: nothing says how likely it was

_TOKEN_ID_BYTES = 5


class TokenLogprob(NamedTuple):
    """One token, and what the model thought of it."""

    token_id: int
    rank: int  # 1: the likeliest; NO_RANK: it has no logprob
    logprob: float
    # Ids and logprobs of the likeliest, falling, then of those that the request names.
    top: tuple[tuple[int, float], ...] = ()


def max_logprob_bytes(max_payload: int) -> int:
    """The limit of prompt and output of one request: with its ids and text they must fit into one
    message.
    """
    return max_payload * 5 // 8


def record_bytes(num_top: int) -> int:
    """Size of a record with so many alternatives."""
    return 12 + 8 * num_top


def num_top_of(num_record_bytes: int) -> int:
    """Raises MalformedMessage when no record has this size."""
    num_top, rest = divmod(num_record_bytes - 12, 8)
    if rest or num_top < 0:
        raise MalformedMessage(f"{num_record_bytes} bytes are no record of logprobs")
    return num_top


def prompt_bytes(num_prompt_tokens: int, num_prompt_top: int | None) -> int:
    """What the logprobs of a prompt take; None: it has none."""
    return 0 if num_prompt_top is None else num_prompt_tokens * record_bytes(num_prompt_top)


def bytes_per_output_token(num_top: int) -> int:
    """The bytes of an output token with its logprobs, id included."""
    return _TOKEN_ID_BYTES + record_bytes(num_top)


def pack_logprobs(records: list[TokenLogprob]) -> bytes:
    """All with the same number of alternatives."""
    return b"".join(
        struct.pack(
            f"<IIf{len(each.top)}I{len(each.top)}f",
            each.token_id,
            each.rank,
            each.logprob,
            *(token_id for token_id, _ in each.top),
            *(logprob for _, logprob in each.top),
        )
        for each in records
    )


def unpack_logprobs(data: bytes | bytearray | memoryview, num_top: int) -> list[TokenLogprob]:
    """Raises MalformedMessage when the data is not a whole number of records."""
    if len(data) % record_bytes(num_top):
        raise MalformedMessage(f"{len(data)} bytes are no records with {num_top} alternatives")
    return [
        TokenLogprob(
            values[0],
            values[1],
            values[2],
            tuple(zip(values[3 : 3 + num_top], values[3 + num_top :], strict=True)),
        )
        for values in struct.iter_unpack(f"<IIf{num_top}I{num_top}f", data)
    ]
