"""Connections that never become a request: slow, huge or too many, and what they are told."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import frontend.http.http_request
import frontend.http.listener
from frontend.http.http_protocol import (
    MAX_HEAD_BYTES,
    ConnectionRoom,
    GuardedProtocol,
    PieceWriter,
)
from frontend.inference.admission.admission import Admission
from shared.errors import Overloaded
from tests.frontend.conftest import RunningFrontend, Stack
from tests.time_to_err import time_to_err

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


class Connection:
    """A client that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, running: RunningFrontend) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", running.frontend.process.port))

    async def answer(self, timeout_s: float = 10) -> tuple[int, dict[str, Any]]:
        """Status and JSON; the server closes afterwards. Raises TimeoutError."""
        raw = await self.read_to_end(timeout_s)
        head, _, body = raw.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    async def read_to_end(self, timeout_s: float = 10) -> bytes:
        async with asyncio.timeout(timeout_s):
            raw = await self._reader.read()
        self.writer.close()
        return raw

    async def read_answer(self) -> bytes:
        """One answer to /health, the connection stays open."""
        async with asyncio.timeout(10):
            return await self._reader.readuntil(b'{"status":"live"}')


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


def cycle_of(transport: Transport, flow: FlowControl) -> RequestResponseCycle:
    """Of a request whose answer has not begun."""
    log = logging.getLogger(__name__)
    return RequestResponseCycle(
        scope={"method": "POST"},  # type: ignore[typeddict-item]
        transport=transport,
        flow=flow,
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


def code_of(body: dict[str, Any]) -> str:
    return str(body["error"]["code"])


@pytest.mark.integration
async def test_a_long_body_is_no_head(stack: Stack) -> None:
    running = await stack.start_frontend()
    connection = await Connection.open(running)
    body = json.dumps({**BODY, "model": "x" * 8 * MAX_HEAD_BYTES}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    connection.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9])
    await asyncio.sleep(0.1)  # the rest comes on its own, its end in a piece above the limit
    connection.writer.write(body[9:])
    status, answer = await connection.answer()
    assert (status, code_of(answer)) == (404, "model_not_found")


@pytest.mark.integration
async def test_older_and_newer_versions_of_http_are_understood(stack: Stack) -> None:
    """Upgrades as Java's client and `curl --http2` send them, also in pieces, and behind one
    another, are declined with their body read; an answer to HTTP/1.0 has no chunks.
    """
    running = await stack.start_frontend()
    body = json.dumps({**BODY, "model": "of no name"}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    ).encode()
    whole, in_pieces = await Connection.open(running), await Connection.open(running)
    whole.writer.write((HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n") * 2)
    whole.writer.write(head + body)
    for _ in range(2):
        assert b"200" in await whole.read_answer()
    for at in range(0, len(head + body), 50):
        in_pieces.writer.write((head + body)[at : at + 50])
        await asyncio.sleep(0.001)
    for connection in (whole, in_pieces):
        connection.writer.write(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        raw = await connection.read_to_end()
        assert raw.count(b"HTTP/1.1 404 Not Found") == 1
        assert b"'of no name'" in raw
        assert raw.endswith(b'"code":"invalid_http"}}')
    old = await Connection.open(running)
    body = json.dumps({**BODY, "stream": True}).encode()
    old_head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
    old.writer.write(f"{old_head}Expect: 100-continue\r\n\r\n".encode() + body)
    told, _, events = (await old.read_to_end()).partition(b"\r\n\r\n")
    assert b" 200 OK\r\n" in told
    assert b"transfer-encoding" not in told
    assert events.startswith(b"id: ")
    assert events.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in events


@pytest.mark.integration
async def test_a_head_that_trickles_in_is_not_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_timeout_s", 0.5)
    running = await stack.start_frontend()
    silent, trickling = await Connection.open(running), await Connection.open(running)

    async def trickle() -> None:
        for byte in HEAD * 100:
            trickling.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    task = asyncio.create_task(trickle())
    for connection in (silent, trickling):
        status, body = await connection.answer()
        assert (status, code_of(body)) == (408, "request_timeout")
    task.cancel()


@pytest.mark.integration
async def test_a_kept_connection_may_be_idle_but_not_begin_and_stop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_timeout_s", 1.0)
    running = await stack.start_frontend()
    connection = await Connection.open(running)
    for _ in range(2):
        connection.writer.write(HEAD + b"\r\n")
        assert b"200" in await connection.read_answer()
        await time_to_err(1.5)  # longer than a head may take
    connection.writer.write(HEAD)
    status, body = await connection.answer()
    assert (status, code_of(body)) == (408, "request_timeout")


@pytest.mark.integration
async def test_heads_are_bounded(stack: Stack) -> None:
    running = await stack.start_frontend()
    at_once, in_pieces = await Connection.open(running), await Connection.open(running)
    at_once.writer.write(HEAD + b"X-Long: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n")
    in_pieces.writer.write(HEAD + b"X-Long: ")
    for _ in range(MAX_HEAD_BYTES // 4096 + 1):
        in_pieces.writer.write(b"a" * 4096)
        await in_pieces.writer.drain()
        await asyncio.sleep(0)
    for connection in (at_once, in_pieces):
        status, body = await connection.answer()
        assert (status, code_of(body)) == (431, "headers_too_large")


@pytest.mark.integration
async def test_what_is_not_http_is_told_so(stack: Stack) -> None:
    running = await stack.start_frontend()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    for raw in (
        b"\x16\x03\x01 hello\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nno length\r\n",
        head + b"Transfer-Encoding: unheard-of\r\n\r\n{}",
        head + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        head + b"Host: elsewhere\r\nContent-Length: 2\r\n\r\n{}",
    ):
        connection = await Connection.open(running)
        connection.writer.write(raw)
        status, body = await connection.answer()
        assert (status, code_of(body)) == (400, "invalid_http")


@pytest.mark.integration
async def test_connections_are_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend.http.listener, "connection_room", lambda: ConnectionRoom(1, 3))
    running = await stack.start_frontend()
    first = await Connection.open(running)
    first.writer.write(HEAD + b"\r\n")
    await first.read_answer()
    asking, silent, looking = [await Connection.open(running) for _ in range(3)]
    with pytest.raises(TimeoutError):  # an answer before a request is one that clients lose
        await asking.answer(timeout_s=0.2)
    too_many = await Connection.open(running)
    asking.writer.write(HEAD.replace(b"GET /health", b"POST /v1/completions") + b"\r\n")
    for refused in (too_many, asking):
        status, body = await refused.answer()
        assert (status, code_of(body)) == (503, "service_unavailable")
    looking.writer.write(HEAD + b"\r\n")  # a probe that is refused has the frontend killed
    assert b"200" in await looking.read_answer()
    status, body = await silent.answer()
    assert (status, code_of(body)) == (408, "request_timeout")
    first.writer.write(HEAD + b"\r\n")
    assert b"200" in await first.read_answer()
    first.writer.close()


@pytest.mark.parametrize(
    ("num_files", "num_bytes", "room"),
    [
        (20_000, 1 << 40, ConnectionRoom(15_904, 2048)),
        (20_000, 1 << 30, ConnectionRoom(8192, 2048)),
        (1024, 1 << 30, ConnectionRoom(768, 128)),
        (1024, 0, ConnectionRoom(1, 128)),
    ],
)
def test_connections_are_as_many_as_files_and_memory_allow(
    num_files: int, num_bytes: int, room: ConnectionRoom
) -> None:
    assert ConnectionRoom.within(num_files, num_bytes) == room


@pytest.mark.integration
async def test_a_body_that_stops_is_not_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend.http.http_request, "_BODY_TIMEOUT_S", 0.3)
    running = await stack.start_frontend()
    connection = await Connection.open(running)
    connection.writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    )
    status, body = await connection.answer()
    assert (status, code_of(body)) == (408, "request_timeout")


@pytest.mark.integration
async def test_compressed_bodies_are_refused(stack: Stack) -> None:
    running = await stack.start_frontend()
    bomb = gzip.compress(json.dumps(BODY).encode() + b" " * (1 << 22))
    async with running.client() as client:
        answer = await client.post(
            "/v1/chat/completions", content=bomb, headers={"content-encoding": "gzip"}
        )
    assert answer.status_code == 415
    assert code_of(answer.json()) == "unsupported_encoding"


@pytest.mark.integration
async def test_under_overload_requests_are_refused_unread_and_looks_are_not(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "overload", lambda _: Overloaded("a long line", 1))
    running = await stack.start_frontend()
    async with running.client() as client:
        refused = await client.post("/v1/chat/completions", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert code_of(refused.json()) == "overloaded"
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.integration
async def test_connections_are_taken_many_at_a_time(stack: Stack) -> None:
    """One in each turn of the loop would leave them in the system's backlog."""
    running = await stack.start_frontend()
    opened = await asyncio.gather(*(Connection.open(running) for _ in range(300)))
    for connection in opened:
        connection.writer.write(HEAD + b"\r\n")
    answers = await asyncio.gather(*(connection.read_answer() for connection in opened))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    for connection in opened:
        connection.writer.close()


async def test_pieces_take_the_short_way_to_clients_that_read() -> None:
    """Whoever reads slowly is waited for, and an answer with a length, or without a body, has no
    chunks.
    """
    transport = Transport()
    flow = FlowControl(transport)
    cycle = cycle_of(transport, flow)
    writer = PieceWriter(cycle)
    assert not writer.is_open  # its head decides
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    assert writer.is_open
    writer.write(b"0123456789abcdef")
    assert transport.written[-1] == b"10\r\n0123456789abcdef\r\n"
    flow.pause_writing()
    assert not writer.is_open
    flow.resume_writing()
    assert writer.is_open
    cycle.disconnected = True
    assert not writer.is_open
