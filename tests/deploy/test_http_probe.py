"""A server of this machine is asked whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from deploy.local.http_probe import answers_ok
from tests.nats_server import free_port

HEAD = b"GET /ready HTTP/1.1"


@contextlib.asynccontextmanager
async def answering(
    words: bytes, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that says `words` to everybody and hangs up, and what it heard."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(words)
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, host, port):
        yield port, heard


@pytest.mark.parametrize(
    ("words", "is_ok"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 ready\r\n\r\n", False),
        (b"200 OK\r\n\r\n", False),
        (b"INFO {}\r\n", False),  # a nats-server
        (b"HTTP/1.1\r\n", False),
        (b"\r\n", False),
        (b"x" * 100_000, False),
        (b"", False),
    ],
)
async def test_only_status_200_is_an_answer(words: bytes, is_ok: bool) -> None:
    async with answering(words) as (port, heard):
        assert await answers_ok("127.0.0.1", port, "/ready") is is_ok
    assert heard[0].splitlines()[0] == HEAD
    assert f"Host: 127.0.0.1:{port}".encode() in heard[0].splitlines()


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(keep_silent, "127.0.0.1", port):
        assert not await answers_ok("127.0.0.1", port, "/ready", timeout_s=0.05)


async def test_an_address_of_ipv6_is_asked_in_brackets() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", "::1") as (port, heard):
        assert await answers_ok("::1", port, "/ready")
    assert f"Host: [::1]:{port}".encode() in heard[0].splitlines()
