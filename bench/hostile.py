"""`python -m bench.hostile`: does a tenant wait while another one floods the frontend with bodies?

Each flood is of one tenant: so many connections, each of which sends the same body again when it
was answered. Meanwhile another tenant's short chats stream, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import uvloop

from bench.local_serve import LocalServe, local_serve
from bench.stream_client import StreamProtocol, StreamResult, http_request
from jetflock.bench.stage_summary import percentile

MODEL = "jetflock-demo"
CHAT = "/v1/chat/completions"
GOOD, EVIL = "good", "evil"
PAUSE_S = 0.05
_EMPTY = {"role": "user", "content": ""}
_FUNCTION = {"name": "f", "parameters": {"type": "object"}}
FLOODS: dict[str, dict[str, Any]] = {
    "20,000 biases": {"messages": [_EMPTY], "logit_bias": {str(i): 1 for i in range(20_000)}},
    "20,000 empty messages": {"messages": [_EMPTY] * 20_000},
    "4,000 empty messages": {"messages": [_EMPTY] * 4000},
    "5,000 tools": {
        "messages": [_EMPTY],
        "tools": [{"type": "function", "function": _FUNCTION}] * 5000,
    },
}


def _payload(port: int, tenant: str, body: dict[str, Any]) -> bytes:
    request = http_request(port, CHAT, {"model": MODEL, "max_tokens": 5, **body})
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {tenant}\r\n".encode(), 1)


async def _asked(port: int, payload: bytes) -> StreamResult:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(StreamProtocol, "127.0.0.1", port)
    try:
        return await protocol.request(transport, payload)
    finally:
        transport.close()


async def _flood(port: int, payload: bytes, statuses: Counter[int]) -> None:
    while True:
        with contextlib.suppress(ConnectionError):
            statuses[(await _asked(port, payload)).status] += 1


async def _chats(port: int, seconds: float) -> list[StreamResult]:
    payload = _payload(port, GOOD, {"stream": True, "messages": [_EMPTY | {"content": "Hi"}]})
    until, found = asyncio.get_running_loop().time() + seconds, []
    while asyncio.get_running_loop().time() < until:
        found.append(await _asked(port, payload))
        await asyncio.sleep(PAUSE_S)
    return found


async def _measure(
    port: int, body: dict[str, Any] | None, connections: int, seconds: float
) -> tuple[list[StreamResult], Counter[int]]:
    statuses = Counter[int]()
    payload = b"" if body is None else _payload(port, EVIL, body)
    floods = [
        asyncio.create_task(_flood(port, payload, statuses))
        for _ in range(connections if payload else 0)
    ]
    try:
        return await _chats(port, seconds), statuses
    finally:
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


@contextlib.contextmanager
def _serving(*, has_keys: bool) -> Iterator[LocalServe]:
    """A stack to which nobody owes anything yet; without keys both are one tenant."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"keys": [{"name": k, "key": k} for k in (GOOD, EVIL)]}))
        flags = ("--api-keys-file", str(path)) if has_keys else ()
        with local_serve("--scripted", *flags, key=GOOD) as serve:
            yield serve


def _run(
    name: str, body: dict[str, Any] | None, connections: int, seconds: float, *, has_keys: bool
) -> None:
    with _serving(has_keys=has_keys) as serve:
        chats, statuses = uvloop.run(_measure(serve.port, body, connections, seconds))
    assert all(chat.status == 200 for chat in chats), "a chat was refused"
    waits = [chat.ttft_s for chat in chats]
    print(
        f"{name:24} {len(waits):4} chats, first token p50 {statistics.median(waits):.3f} s, "
        f"p99 {percentile(waits, 99):.3f}, max {max(waits):.3f}; the flood had "
        + (", ".join(f"{count} x {status}" for status, count in statuses.items()) or "nothing"),
        flush=True,
    )


def main(
    only: Annotated[str, cyclopts.Parameter(help="Run the floods whose name has this.")] = "",
    connections: Annotated[int, cyclopts.Parameter(help="Of the tenant that floods.")] = 20,
    seconds: Annotated[float, cyclopts.Parameter(help="Of each flood.")] = 6.0,
    has_keys: Annotated[bool, cyclopts.Parameter(help="Without, nobody is sent away.")] = True,
) -> None:
    """Measure how long a tenant waits beside one that floods."""
    _run("no flood", None, connections, seconds, has_keys=has_keys)
    for name, body in FLOODS.items():
        if only in name:
            _run(name, body, connections, seconds, has_keys=has_keys)


if __name__ == "__main__":
    cyclopts.run(main)
