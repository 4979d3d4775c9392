"""How large a message is to a NATS server, which counts its headers, too."""

from __future__ import annotations

from collections.abc import Mapping

_FRAME_BYTES = len("NATS/1.0\r\n\r\n")
_LINE_BYTES = len(": \r\n")


def message_bytes(data: bytes, headers: Mapping[str, str] | None) -> int:
    """What must not be above its max_payload: who sends more loses the connection."""
    if headers is None:
        return len(data)
    lines = sum(
        len(key.encode()) + len(value.encode()) + _LINE_BYTES for key, value in headers.items()
    )
    return len(data) + _FRAME_BYTES + lines
