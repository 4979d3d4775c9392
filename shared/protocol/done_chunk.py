"""A finished result as one chunk of text."""

from __future__ import annotations

from shared.protocol.text import Done, TextChunk, checksum
from shared.protocol.token_ids import unpack_token_ids


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
