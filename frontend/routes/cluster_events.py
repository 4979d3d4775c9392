"""`GET /cluster/events`: a snapshot, then what changes, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from frontend.http.connected_client import ConnectedClient
from frontend.http.error_response import EVENT_STREAM_HEADERS
from frontend.text.event_writer import encode_json
from shared.errors import AuthenticationFailed, RequestError
from shared.event_wait import wait_event

_INTERVAL_S = 1.0

Look = Callable[[], Awaitable[dict[str, Any]]]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Applied to `before` it makes `after`: null removes, objects merge, all else replaces.

    No member of `after` may be null: a patch could not say so.
    """
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif name not in before or old != value:
            patch[name] = value
    return patch


class ClusterEvents:
    """An ASGI response. It ends with its reader, with the key, or when `over` is set."""

    status_code = 200

    def __init__(self, first: dict[str, Any], look: Look, over: asyncio.Event) -> None:
        self._sent = first
        self._look = look
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = list(EVENT_STREAM_HEADERS)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] != "HEAD":
            await self._send_event(send, b"snapshot", self._sent)
            client = ConnectedClient.of(scope)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_changes(send))
                client.on_gone(sending.cancel)
            client.forget(sending.cancel)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_changes(self, send: Send) -> None:
        while not await wait_event(self._over, _INTERVAL_S):
            try:
                seen = await self._look()
            except AuthenticationFailed:
                return
            except RequestError as exc:  # what was told last stays, and is known to be old
                seen = self._sent | {"error": str(exc)}
            if patch := merge_patch(self._sent, seen):
                self._sent = seen
                await self._send_event(send, b"change", patch)
            else:  # NATS is away: no proxy shall take the stream for dead
                await send({"type": "http.response.body", "body": b": ping\n", "more_body": True})

    @staticmethod
    async def _send_event(send: Send, name: bytes, data: dict[str, Any]) -> None:
        body = b"event: " + name + b"\ndata: " + encode_json(data) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
