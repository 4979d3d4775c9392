"""MessagePack on the wire: `msgpack` packs and unpacks, msgspec checks the types.

Every message carries the protocol version: maps under the key `v`, arrays as their first element.
Unknown keys and trailing elements are ignored, an unknown version is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgpack
import msgspec

from shared.errors import MalformedMessage, NewerLevel, ProtocolError, UnknownVersion
from shared.protocol.fields import Place
from shared.protocol.log_records import OwnershipRecord, TokenEntry, TokenFrame
from shared.protocol.notices import ControlMessage
from shared.protocol.request import FEATURE_LEVEL, PROTOCOL_VERSION, GenerateRequest
from shared.protocol.text import TextChunk, TextFrame

T = TypeVar("T")

_BUILTINS = (bytes,)

# A message takes the event loop 50 ms at most: a mebibyte may hold a million lists.
_SMALL_BYTES = 128 * 1024  # takes 15 ms at most
_MAX_CONTAINERS = 32_768  # lists and maps in a larger one
_MAX_MAP_LEN = 4096
_FIXED_ARRAY = 0x90  # the first byte of an empty array; each element adds one, up to 15
_MAX_ERROR_CHARS = 200  # what is quoted in an error ends in logs

_encode = msgspec.msgpack.Encoder().encode

# The frames of this build, each with its version before it.
_token_frames = msgspec.msgpack.Decoder(tuple[int, str, int, list[TokenEntry], Place])
_text_frames = msgspec.msgpack.Decoder(tuple[int, str, list[TextChunk]])


def encode(message: msgspec.Struct) -> bytes:
    """A struct that is a map on the wire."""
    body: dict[str, Any] = msgspec.to_builtins(message, builtin_types=_BUILTINS)
    body["v"] = PROTOCOL_VERSION
    return msgpack.packb(body)  # type: ignore[no-any-return]


def decode(message_type: type[T], data: bytes) -> T:
    """Raises UnknownVersion or MalformedMessage."""
    return _convert(_unpack_versioned(data), message_type)


def check_readable(data: bytes) -> None:
    """Raises MalformedMessage for what was encoded and has too many lists or maps to be decoded."""
    _unpack(data)


def decode_request(data: bytes) -> GenerateRequest:
    """Raises NewerLevel, whether or not it could be read; UnknownVersion or MalformedMessage."""
    return _convert(_unpack_stamped(data), GenerateRequest)


def pack_map(body: dict[str, Any]) -> bytes:
    """A map of plain values that travels inside a message."""
    return msgpack.packb(body)  # type: ignore[no-any-return]


def unpack_map(data: bytes) -> dict[str, Any]:
    """Raises MalformedMessage."""
    body = _unpack(data)
    if not isinstance(body, dict):
        raise MalformedMessage(f"expected a map, got {type(body).__name__}")
    return body


def decode_ownership(data: bytes) -> OwnershipRecord:
    """Raises NewerLevel, whether or not it could be read; UnknownVersion or MalformedMessage."""
    record: OwnershipRecord = _convert(_unpack_stamped(data), OwnershipRecord)  # type: ignore[arg-type]
    return record


def decode_control(data: bytes) -> ControlMessage:
    """Raises UnknownVersion or MalformedMessage."""
    return decode(ControlMessage, data)  # type: ignore[arg-type]


def encode_token_frame(frame: TokenFrame) -> bytes:
    """The hot path of a worker: arrays only."""
    return _with_version(_encode(frame))


def decode_token_frame(
    data: bytes, on_unreadable: Callable[[ProtocolError], None] | None = None
) -> TokenFrame:
    """An entry that cannot be read is told and left out: it is one request's, the frame is many's.

    Raises UnknownVersion or MalformedMessage.
    """
    known = _read_at_once(_token_frames, data)
    if known is not None and known[0] == PROTOCOL_VERSION:
        return TokenFrame(*known[1:])
    body = _unpack_array(data)
    try:
        return _convert(body, TokenFrame)
    except MalformedMessage:
        entries = body[2] if len(body) > 2 else None
        if not isinstance(entries, list):
            raise
    frame = _convert([*body[:2], []], TokenFrame)
    readable = []
    for entry in entries:
        try:
            readable.append(_convert(entry, TokenEntry))
        except MalformedMessage as exc:
            if on_unreadable is not None:
                on_unreadable(exc)
    if not readable:
        raise MalformedMessage(f"no entry of {len(entries)} can be read")
    return msgspec.structs.replace(frame, entries=readable)


def encode_text_frame(frame: TextFrame) -> bytes:
    """The hot path of a detokenizer: arrays only."""
    return _with_version(_encode(frame))


def decode_text_frame(data: bytes) -> TextFrame:
    """Raises UnknownVersion or MalformedMessage."""
    known = _read_at_once(_text_frames, data)
    if known is not None and known[0] == PROTOCOL_VERSION:
        return TextFrame(*known[1:])
    return _convert(_unpack_array(data), TextFrame)


def _read_at_once(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T | None:
    """None: what is wrong with it, or whether it is only large or of another build, is found piece
    by piece.
    """
    if len(data) > _SMALL_BYTES:
        return None
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _with_version(array: bytes) -> bytes:
    """An array with the protocol version before its elements, which are few: the length is in its
    first byte, and so is a small number.
    """
    assert _FIXED_ARRAY <= array[0] < _FIXED_ARRAY + 15
    return bytes((array[0] + 1, PROTOCOL_VERSION)) + array[1:]


def _unpack_versioned(data: bytes) -> dict[str, Any]:
    body = unpack_map(data)
    version = body.get("v")
    if version != PROTOCOL_VERSION:
        raise UnknownVersion(version, PROTOCOL_VERSION)
    return body


def _unpack_stamped(data: bytes) -> dict[str, Any]:
    body = _unpack_versioned(data)
    level = body.get("level")
    if isinstance(level, int) and level > FEATURE_LEVEL:
        raise NewerLevel(level, FEATURE_LEVEL)
    return body


def _unpack(data: bytes) -> Any:
    hooks: dict[str, Any] = {}
    if len(data) > _SMALL_BYTES:
        count = _ContainerCount()
        hooks = {"list_hook": count.add, "object_hook": count.add}
    try:
        return msgpack.unpackb(data, max_ext_len=0, max_map_len=_MAX_MAP_LEN, **hooks)
    except (ValueError, msgpack.UnpackException) as exc:
        raise MalformedMessage(f"not MessagePack: {str(exc)[:_MAX_ERROR_CHARS]}") from exc


class _ContainerCount:
    """Refuses the rest of a message that is made of too many lists and maps."""

    def __init__(self) -> None:
        self._num_left = _MAX_CONTAINERS

    def add(self, container: T) -> T:
        self._num_left -= 1
        if self._num_left < 0:
            raise ValueError(f"more than {_MAX_CONTAINERS} lists and maps")
        return container


def _unpack_array(data: bytes) -> list[Any]:
    body = _unpack(data)
    if not isinstance(body, list) or not body:
        raise MalformedMessage(f"expected an array, got {type(body).__name__}")
    if body[0] != PROTOCOL_VERSION:
        raise UnknownVersion(body[0], PROTOCOL_VERSION)
    del body[0]
    return body


def _convert(body: Any, message_type: type[T]) -> T:
    try:
        return msgspec.convert(body, message_type, builtin_types=_BUILTINS)
    except msgspec.ValidationError as exc:
        raise MalformedMessage(str(exc)[:_MAX_ERROR_CHARS]) from exc
