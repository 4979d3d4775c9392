"""Asks one HTTP path whether its server is ready."""

from __future__ import annotations

import asyncio
import contextlib


async def answers_ok(host: str, port: int, path: str, timeout_s: float = 1.0) -> bool:
    """Whether GET gives status 200 in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False


def reachable_host(host: str) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def http_url(host: str, port: int) -> str:
    """Of a server that listens there, for a client on this machine."""
    host = reachable_host(host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
