"""Tells a client over HTTP the id that it gave its request."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from frontend.jobs.client_request_id import HEADER, client_request_id
from shared.errors import InvalidRequest


def telling_client_id(scope: Scope, send: Send) -> Send:
    """Every answer to a client that named its request has that name."""
    try:
        name = client_request_id(Headers(scope=scope))
    except InvalidRequest:
        return send
    if not name:
        return send

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[HEADER] = name
        await send(message)

    return send_with_id
