"""A small HTTP client on a socket of its own, whose reading can be made slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

_SLOW_BUFFER_BYTES = 4096


class HttpStream:
    """One request and its answer. Raises OSError, EOFError or TimeoutError when it is cut.

    `asyncio.IncompleteReadError` is an EOFError: an answer that ends before its end.
    """

    def __init__(self, port: int, *, is_slow: bool = False, silence_s: float = 3.0) -> None:
        self._port = port
        self._is_slow = is_slow
        self._silence_s = silence_s  # longer than the server's pings: then it is gone
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> HttpStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def send(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> None:
        """Send the request, and wait for the head of the answer."""
        sock = socket.socket()
        sock.setblocking(False)
        if self._is_slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        try:
            async with asyncio.timeout(self._silence_s):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
                self._reader, self._writer = await asyncio.open_connection(
                    sock=sock, limit=_SLOW_BUFFER_BYTES if self._is_slow else 1 << 20
                )
        except BaseException:
            sock.close()
            raise
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
        self._writer.write("\r\n".join(lines).encode() + content)
        await self._read_head()

    async def _read_head(self) -> None:
        status = await self._line()
        self.status = int(status.split()[1])
        while line := await self._line():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    async def body(self) -> bytes:
        """The whole answer."""
        if "content-length" in self.headers:
            async with asyncio.timeout(self._silence_s):
                return await self._reader.readexactly(int(self.headers["content-length"]))
        return b"".join([chunk async for chunk in self._chunks()])

    async def events(self, pause_s: float = 0.0) -> AsyncGenerator[tuple[str, str], None]:
        """(id, data) of each event; a slow client pauses before it reads on."""
        rest = b""
        event_id = ""
        async with contextlib.aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"id: "):
                        event_id = line[4:].decode()
                    elif line.startswith(b"data: "):
                        yield event_id, line[6:].decode()
                if pause_s:
                    await asyncio.sleep(pause_s)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while size := int(await self._line(), 16):
            async with asyncio.timeout(self._silence_s):
                chunk = await self._reader.readexactly(size + 2)
            yield chunk[:-2]
        await self._line()

    async def _line(self) -> str:
        async with asyncio.timeout(self._silence_s):
            line = await self._reader.readuntil(b"\r\n")
        return line[:-2].decode()
