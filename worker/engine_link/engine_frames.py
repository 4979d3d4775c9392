"""Frames between I/O process and engine: four bytes of length, then MessagePack.

Both ends are of one build, so that frames carry no version.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from shared.errors import MalformedMessage
from worker.engine_link.engine_messages import EngineCommand, EngineEvent

T = TypeVar("T")

_LENGTH = struct.Struct("<I")

_encode = msgspec.msgpack.Encoder().encode
_commands: msgspec.msgpack.Decoder[EngineCommand] = msgspec.msgpack.Decoder(EngineCommand)
_events: msgspec.msgpack.Decoder[EngineEvent] = msgspec.msgpack.Decoder(EngineEvent)


def encode_frame(message: EngineCommand | EngineEvent) -> bytes:
    """One frame, its length included."""
    return to_frame(_encode(message))


def to_frame(body: bytes) -> bytes:
    """The message with its length before it."""
    return _LENGTH.pack(len(body)) + body


def decode_command(frame: bytes) -> EngineCommand:
    """Raises MalformedMessage."""
    return _decoded(_commands, frame)


def decode_event(frame: bytes) -> EngineEvent:
    """Raises MalformedMessage."""
    return _decoded(_events, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    try:
        return decoder.decode(frame)
    except msgspec.DecodeError as exc:
        raise MalformedMessage(f"not an engine message: {exc}") from exc


class FrameReader:
    """Cuts a byte stream into frames; holds the beginning of the one that is still incomplete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, without their lengths."""
        self._buffer += data
        frames: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (body_len,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + body_len
            if end > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return frames
