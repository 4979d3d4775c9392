"""Cuts what a NATS server sends into messages and the lines between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nats.errors import ProtocolError

MAX_LINE_BYTES = 16_384  # of a message's head: a server's own limit is 4 KiB unless it is raised
_CRLF = b"\r\n"

# Number of the subscription, subject, reply subject, payload, and raw headers, b"" without any.
OnMessage: TypeAlias = Callable[[int, str, str, bytes, bytes], None]
OnLine: TypeAlias = Callable[[bytes], None]


class WireParser:
    """Calls `on_message` and `on_line` in the order of the bytes, while `feed` runs.

    It holds the beginning of what is not whole yet, and looks at it again when it may be.
    """

    def __init__(self, on_message: OnMessage, on_line: OnLine) -> None:
        self._on_message = on_message
        self._on_line = on_line
        self._held: list[bytes] = []
        self._num_held = 0
        self._num_needed = 0  # bytes, held ones included, before it is worth to look again

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError for what no server sends."""
        if self._held:
            self._held.append(data)
            self._num_held += len(data)
            if self._num_held < self._num_needed:
                return
            data = b"".join(self._held)
            self._held.clear()
        start, num_needed = self._take(data)
        if start < len(data):
            self._held.append(data[start:])
            self._num_held = len(data) - start
            self._num_needed = num_needed

    def _take(self, data: bytes) -> tuple[int, int]:
        """Where the rest begins, and how long it must be before there is more in it."""
        start, size = 0, len(data)
        while start < size:
            line_end = data.find(_CRLF, start)
            if line_end < 0:
                if size - start > MAX_LINE_BYTES:
                    raise ProtocolError
                return start, size - start + 1
            body = line_end + 2
            is_plain = data.startswith(b"MSG ", start)
            if not is_plain and not data.startswith(b"HMSG ", start):
                self._on_line(data[start:line_end])
                start = body
                continue
            # What others have put into a subject need not be UTF-8.
            words = data[start:line_end].decode("utf-8", "replace").split(" ")
            try:
                num_bytes = int(words[-1])
                num_header_bytes = 0 if is_plain else int(words[-2])
                sid = int(words[2])
            except (ValueError, IndexError) as exc:
                raise ProtocolError from exc
            end = body + num_bytes
            if end + 2 > size:
                return start, end + 2 - start
            reply = words[3] if len(words) == (5 if is_plain else 6) else ""
            payload = body + num_header_bytes
            self._on_message(sid, words[1], reply, data[payload:end], data[body:payload])
            start = end + 2
        return start, 0
