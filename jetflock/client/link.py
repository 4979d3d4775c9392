"""The client's NATS connection: one inbox subscription for all its requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from jetflock.errors import ERROR_HEADER, ApiError, ClientError, RequestTooLarge

_HEAD_BYTES = len("NATS/1.0\r\n\r\n")

STATUS_HEADER = "Jetflock-Status"
REQUEST_ID_HEADER = "Jetflock-Request-Id"
EVENT_ID_HEADER = "Jetflock-Event-Id"
EVENT_BEFORE_HEADER = "Jetflock-Event-Before"


class NoFrontend(ClientError):
    """The server says that nobody listens: the request went nowhere."""


class ConnectionChanged(Exception):
    """The connection was lost and came back, so messages may be missing."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to an inbox."""

    data: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> str | None:
        return self.headers.get(STATUS_HEADER)

    @property
    def request_id(self) -> str:
        return self.headers.get(REQUEST_ID_HEADER, "")


class Inbox:
    """Messages to one request, in order, until closed."""

    def __init__(self, link: Link, token: str, subject: str) -> None:
        self.subject = subject
        self._link = link
        self._token = token
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    def put(self, message: Message | None) -> None:
        """None says that the connection has changed."""
        if message is not None and message.status == "waiting" and not self._queue.empty():
            return  # nobody reads at the moment: signs of life need not pile up
        self._queue.put_nowait(message)

    async def next(self, timeout_s: float) -> Message:
        """Raises TimeoutError, ConnectionChanged, or the ApiError that was sent."""
        async with asyncio.timeout(timeout_s):
            message = await self._queue.get()
        if message is None:
            raise ConnectionChanged
        if message.headers.get("Status") == "503":
            raise NoFrontend
        if ERROR_HEADER in message.headers and message.status != "interrupted":
            raise ApiError.from_reply(message.data, message.headers)
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.forget(self._token)


class Link:
    """Sends requests and hands each reply to its inbox. Never gives up reconnecting."""

    def __init__(self, nc: NatsClient, api_key: str | None, inbox_prefix: str) -> None:
        self._nc = nc
        self._auth = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._prefix = f"{inbox_prefix}.{secrets.token_hex(12)}"
        self._tokens = itertools.count(1)
        self._inboxes: dict[str, Inbox] = {}
        self._connected = asyncio.Event()
        self._connected.set()

    @classmethod
    async def connect(
        cls, servers: str, api_key: str | None, caller: str, options: dict[str, Any]
    ) -> Self:
        """Raises ClientError when no server can be reached."""
        # It may have no right to any inbox but its own.
        options = {"inbox_prefix": f"_INBOX_{caller}" if caller else "_INBOX", **options}
        nc = NatsClient()
        link = cls(nc, api_key, options["inbox_prefix"])
        try:
            await nc.connect(
                [url.strip() for url in servers.split(",") if url.strip()],
                name="jetflock-client",
                disconnected_cb=link._on_disconnected,
                reconnected_cb=link._on_reconnected,
                error_cb=_ignore,
                reconnect_time_wait=0.2,  # type: ignore[arg-type]  # it only sleeps
                max_reconnect_attempts=3,
                ping_interval=5,
                **options,
            )
        except (nats.errors.Error, OSError) as exc:
            raise ClientError(
                f"cannot connect to NATS at {servers}: {str(exc) or type(exc).__name__}"
            ) from exc
        nc.options["max_reconnect_attempts"] = -1
        await nc.subscribe(f"{link._prefix}.*", cb=link._on_message)
        return link

    def inbox(self) -> Inbox:
        token = str(next(self._tokens))
        inbox = self._inboxes[token] = Inbox(self, token, f"{self._prefix}.{token}")
        return inbox

    def forget(self, token: str) -> None:
        self._inboxes.pop(token, None)

    async def ask(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        inbox: Inbox,
        timeout_s: float,
    ) -> Message:
        """Send, and return the first message that comes back.

        Raises what `Inbox.next` raises.
        """
        headers = {**self._auth, **headers}
        # The server counts the headers, too, and closes the connection of who sends more.
        num_bytes = len(body) + _HEAD_BYTES + sum(len(f"{k}: {v}\r\n") for k, v in headers.items())
        if num_bytes > self._nc.max_payload:
            raise RequestTooLarge(
                f"the body has {len(body)} bytes, one NATS message takes {self._nc.max_payload} "
                "with its headers",
                status=413,
            )
        try:
            await self._nc.publish(subject, body, reply=inbox.subject, headers=headers)
        except nats.errors.Error as exc:
            raise ClientError(f"cannot send to {subject}: {exc or type(exc).__name__}") from exc
        return await inbox.next(timeout_s)

    async def wait_connected(self, timeout_s: float) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._connected.wait()

    @property
    def is_closed(self) -> bool:
        return bool(self._nc.is_closed)

    async def close(self) -> None:
        # The server may be gone already; uvloop says so in words of its own.
        with contextlib.suppress(OSError, RuntimeError):
            await self._nc.close()
        for inbox in list(self._inboxes.values()):
            inbox.put(None)

    async def _on_message(self, msg: Msg) -> None:
        inbox = self._inboxes.get(msg.subject.rpartition(".")[2])
        if inbox is not None:
            inbox.put(Message(msg.data, msg.headers or {}))

    async def _on_disconnected(self) -> None:
        self._connected.clear()

    async def _on_reconnected(self) -> None:
        self._connected.set()
        for inbox in list(self._inboxes.values()):
            inbox.put(None)


async def _ignore(_exc: Exception) -> None:
    """The connection's troubles show in the streams: as silence, and as ConnectionChanged."""
