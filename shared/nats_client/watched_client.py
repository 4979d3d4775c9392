"""A connection to NATS that tells of slow requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from shared.nats_client.prompt_client import PromptClient

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


class WatchedClient(PromptClient):
    """`on_slow` hears the subject of each request without an answer so far, or without listener."""

    def __init__(self) -> None:
        super().__init__()
        self.on_slow: Callable[[str], None] = lambda _: None

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
