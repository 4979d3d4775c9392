"""A connection to NATS that tells of slow requests, and sends no message that is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, NoRespondersError

_FRAME_BYTES = len("NATS/1.0\r\n\r\n")
_LINE_BYTES = len(": \r\n")
_SLOW_S = 0.8


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


class FlushingClient(Client):
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
    """`on_slow` hears the subject of each request without an answer so far, or without listener."""

    def __init__(self) -> None:
        super().__init__()
        self.on_slow: Callable[[str], None] = lambda _: None

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
        if headers is not None and message_bytes(payload, headers) > self.max_payload:
            raise MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Msg:
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self.on_slow, subject)
        try:
            return await super().request(subject, payload, timeout, old_style, headers)
        except NoRespondersError:
            self.on_slow(subject)
            raise
        finally:
            slow.cancel()
