"""The id that a client gives its request: logged and told again, and never an id of ours."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from shared.errors import InvalidRequest

HEADER = "x-client-request-id"  # OpenAI's; proxies call theirs X-Request-Id
_NAMES = (HEADER, "x-request-id")
_MAX_CHARS = 512


def client_request_id(headers: Mapping[str, str]) -> str:
    """Of headers with lower-case names; "" for none. Raises InvalidRequest."""
    for name in _NAMES:
        value = headers.get(name)
        if value is None:
            continue
        if not _is_fine(value):
            raise InvalidRequest(
                f"header {name} is {value[:40]!r}, must be 1 to {_MAX_CHARS} printable ASCII "
                "characters",
                param=name,
            )
        return value
    return ""


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


def _is_fine(value: str) -> bool:
    return 1 <= len(value) <= _MAX_CHARS and value.isascii() and value.isprintable()
