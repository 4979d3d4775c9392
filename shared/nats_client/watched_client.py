"""A connection to NATS that tells of slow requests, and sends no message that is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import MaxPayloadError

from shared.nats_client.prompt_client import PromptClient

_FRAME_BYTES = len("NATS/1.0\r\n\r\n")
_LINE_BYTES = len(": \r\n")


def message_bytes(data: bytes, headers: Mapping[str, str] | None) -> int:
    """How large a message is to a server, which counts its headers, too.

    Who sends more than its max_payload loses the connection.
    """
    if headers is None:
        return len(data)
    lines = sum(
        len(key.encode()) + len(value.encode()) + _LINE_BYTES for key, value in headers.items()
    )
    return len(data) + _FRAME_BYTES + lines


class FlushingClient(PromptClient):
    """On it sending does not fail because the connection has just broken: what is
    to be sent waits for the next connection, as it does a moment later.

    nats-py sends at once where its own flushing task has ended, before it knows that the connection
    is gone: then whoever publishes or asks hears what the transport says, RuntimeError on uvloop.
    """

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        try:
            return await super()._flush_pending(force_flush)
        except (OSError, RuntimeError) as exc:
            await self._process_op_err(exc)
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done


class WatchedClient(FlushingClient):
    """It sends no message that is too large, and the usual ones by a shorter way than nats-py's."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Raises MaxPayloadError also where it is the headers that are too much: the server would
        close the connection, on which others are served, too.
        """
        head = b"" if headers is None else _header_block(headers)
        names = subject + reply
        is_usual = subject and names.isprintable() and " " not in names
        if head is None or not is_usual or self._status != Client.CONNECTED:
            if headers is not None and message_bytes(payload, headers) > self.max_payload:
                raise MaxPayloadError
            await super().publish(subject, payload, reply, headers)
            return
        num_bytes = len(head) + len(payload)
        if num_bytes > self.max_payload:
            raise MaxPayloadError
        if head:
            command = f"HPUB {subject} {reply} {len(head)} {num_bytes}\r\n"
        else:
            command = f"PUB {subject} {reply} {num_bytes}\r\n"
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        await self._send_command(b"".join((command.encode(), head, payload, b"\r\n")))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


def _header_block(headers: Mapping[str, str]) -> bytes | None:
    """The headers as they travel; None for what nats-py puts right, or refuses."""
    lines = ["NATS/1.0\r\n"]
    for name, value in headers.items():
        if not (name.replace("-", "").isalnum() and name.isascii() and value.isprintable()):
            return None
        lines.append(name + ": " + value + "\r\n")  # formatted, an enum would be its Python name
    lines.append("\r\n")
    return "".join(lines).encode()
