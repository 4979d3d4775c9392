"""Asks a server on this machine over HTTP, past any proxy of the environment."""

from __future__ import annotations

import asyncio
import http


async def answers_ok(host: str, port: int, path: str, timeout_s: float = 1.0) -> bool:
    """Whether GET gives status 200 in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _status(host, port, path) == http.HTTPStatus.OK
    except (OSError, ValueError):  # nobody listens, or it is no HTTP
        return False


async def _status(host: str, port: int, path: str) -> int:
    """What the first line of the answer says. Raises ValueError where that is none of HTTP/1."""
    reader, writer = await asyncio.open_connection(reachable_host(host), port)
    try:
        authority = http_url(host, port).removeprefix("http://")
        head = f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        version, status, *_ = (await reader.readline()).split()
    finally:
        writer.close()
    if not version.startswith(b"HTTP/1."):
        raise ValueError(f"{version!r} is no version of HTTP")
    return int(status)


def reachable_host(host: str) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def http_url(host: str, port: int) -> str:
    """The URL of a server that listens there, for a client on this machine."""
    host = reachable_host(host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
