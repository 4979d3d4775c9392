"""Cuts a chunk into pieces that a message has room for."""

from __future__ import annotations

from collections.abc import Iterator

from shared.protocol.text import TextChunk, checksum

MAX_PIECE_BYTES = 500_000  # about half of the max_payload that roles insist on
_OVERHEAD_BYTES = 100  # what a chunk without text and ids takes
_CHAR_BYTES = 4
_ID_BYTES = 5


def num_bytes_of(chunk: TextChunk) -> int:
    """What a message needs for it, at most."""
    num_bytes = _OVERHEAD_BYTES + _CHAR_BYTES * len(chunk.text) + _ID_BYTES * len(chunk.token_ids)
    if chunk.finish is not None:
        num_bytes += chunk.finish.num_result_bytes
    return num_bytes + len(chunk.logprobs) + len(chunk.prompt_logprobs)


def pieces_of(chunk: TextChunk) -> Iterator[TextChunk]:
    """The same text and ids; the finish rides on the last one. The logprobs of a prompt cannot be
    cut: they ride on the first one, alone but for a token.
    """
    if num_bytes_of(chunk) <= MAX_PIECE_BYTES:
        yield chunk
        return
    if chunk.prompt_logprobs and chunk.token_ids:
        yield _piece(chunk, slice(0, 0), slice(0, 1))
        first_id = 1
    else:
        first_id = 0
    num_ids, num_chars = len(chunk.token_ids) - first_id, len(chunk.text)
    num_pieces = max(1, -(-_num_cut_bytes(chunk) // MAX_PIECE_BYTES))
    for i in range(num_pieces):
        chars = slice(num_chars * i // num_pieces, num_chars * (i + 1) // num_pieces)
        start = first_id + num_ids * i // num_pieces
        end = first_id + num_ids * (i + 1) // num_pieces
        yield _piece(chunk, chars, slice(start, end))


def chunk_from(chunk: TextChunk, position: int) -> TextChunk:
    """Without the ids of the tokens before `position`."""
    num_ids = len(chunk.token_ids)
    num_known = min(max(0, position - (chunk.position - num_ids)), num_ids)
    if not num_known:
        return chunk
    record_bytes = len(chunk.logprobs) // num_ids
    return TextChunk(
        chunk.rid,
        chunk.position,
        chunk.offset,
        chunk.text,
        chunk.token_ids[num_known:],
        chunk.finish,
        chunk.logprobs[num_known * record_bytes :],
        checksum=chunk.checksum,
    )


def _num_cut_bytes(chunk: TextChunk) -> int:
    """The bytes of all that can be cut."""
    num_bytes = _CHAR_BYTES * len(chunk.text) + _ID_BYTES * len(chunk.token_ids)
    return num_bytes + len(chunk.logprobs)


def _piece(chunk: TextChunk, chars: slice, ids: slice) -> TextChunk:
    num_ids = len(chunk.token_ids)
    record_bytes = len(chunk.logprobs) // (num_ids or 1)
    is_last = ids.stop == num_ids and chars.stop == len(chunk.text)
    return TextChunk(
        chunk.rid,
        chunk.position - num_ids + ids.stop,
        chunk.offset + chars.start,
        chunk.text[chars],
        chunk.token_ids[ids],
        chunk.finish if is_last else None,
        chunk.logprobs[ids.start * record_bytes : ids.stop * record_bytes],
        b"" if ids.start else chunk.prompt_logprobs,
        checksum(chunk.text[: chars.start], chunk.checksum),
    )
