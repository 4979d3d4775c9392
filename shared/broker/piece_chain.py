"""A record that one message has no room for: pieces on one subject, each behind the one before it.

A record that fits is one message, as it is. Whoever writes the same record finds the pieces that
were written already, and goes on behind them: two who do it at once, or one after the other's
death, make one record.
"""

from __future__ import annotations

import msgspec

from shared.broker.jetstream import JetStream, StoredMessage
from shared.errors import CasConflict, ProtocolError
from shared.nats_client.connection import MIN_MAX_PAYLOAD
from shared.protocol.codec import decode, encode

_ROOM_BYTES = MIN_MAX_PAYLOAD - 1024  # the same on every server: all must cut alike
_MAX_PIECES = 1000


class Piece(msgspec.Struct, frozen=True):
    """One of several messages that make a record."""

    piece_idx: int
    num_pieces: int
    data: bytes


class PieceChain:
    """Records of one stream."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream

    async def write(self, subject: str, record: bytes, prev: int) -> None:
        """Store a record behind the message at `prev` of its subject; 0: there is none.

        Raises CasConflict when a record is there, BrokerError when it is not stored: to be
        tried again.
        """
        *firsts, last = _cut(record, _ROOM_BYTES)
        for message in firsts:
            prev = await self._write_one(subject, message, prev)
        await self._js.publish(subject, last, expected_last=prev)

    async def _write_one(self, subject: str, message: bytes, prev: int) -> int:
        try:
            return (await self._js.publish(subject, message, expected_last=prev)).seq
        except CasConflict:
            stored = await self._js.get_next(self._stream, subject, prev + 1)
            if stored is None or stored.data != message:
                raise
            return stored.seq

    async def read(self, subject: str, seq: int = 1) -> bytes | None:
        """The record whose first message is stored at `seq` or later; None when there is none, or
        not all of it yet. Leader reads; raises BrokerError.
        """
        first = await self._js.get_next(self._stream, subject, seq)
        if first is None:
            return None
        piece = piece_of(first.data)
        if piece is None:
            return first.data
        return await self._rest(subject, first, piece)

    async def _rest(self, subject: str, message: StoredMessage, piece: Piece) -> bytes | None:
        parts = [piece.data]
        for idx in range(1, piece.num_pieces):
            found = await self._js.get_next(self._stream, subject, message.seq + 1)
            more = None if found is None else piece_of(found.data)
            if found is None or more is None or more.piece_idx != idx:
                return None
            parts.append(more.data)
            message = found
        return b"".join(parts)


def _cut(record: bytes, room: int) -> list[bytes]:
    if len(record) <= room:
        return [record]
    num_pieces = -(-len(record) // room)
    return [
        encode(Piece(idx, num_pieces, record[idx * room : (idx + 1) * room]))
        for idx in range(num_pieces)
    ]


def piece_of(data: bytes) -> Piece | None:
    """What a message is a piece of; None for a record that is one message."""
    try:
        piece = decode(Piece, data)
    except ProtocolError:
        return None
    return piece if 0 <= piece.piece_idx < piece.num_pieces <= _MAX_PIECES else None
