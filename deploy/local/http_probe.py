"""Asks a server on this machine over HTTP, past any proxy of the environment."""

from __future__ import annotations

import asyncio

import httpx


async def answers_ok(host: str, port: int, path: str, timeout_s: float = 1.0) -> bool:
    """Whether GET gives status 200 in time."""
    request = httpx.Request("GET", http_url(host, port) + path, headers={"connection": "close"})
    try:
        async with asyncio.timeout(timeout_s), httpx.AsyncHTTPTransport(verify=False) as direct:
            answer = await direct.handle_async_request(request)
            await answer.aclose()
    except (httpx.HTTPError, TimeoutError):
        return False
    return answer.status_code == httpx.codes.OK


def reachable_host(host: str) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def http_url(host: str, port: int) -> str:
    """Of a server that listens there, for a client on this machine."""
    host = reachable_host(host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
