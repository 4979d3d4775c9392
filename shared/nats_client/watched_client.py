"""A connection to NATS that tells of slow requests, and sends no message that is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, NoRespondersError

from shared.nats_client.flushing_client import FlushingClient
from shared.nats_client.message_size import message_bytes

_SLOW_S = 0.8


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
