"""A proxy as providers put them before services: it buffers answers, and cuts who is silent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType

_HEAD_END = b"\r\n\r\n"
_GATEWAY_TIMEOUT = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_MAX_READ = 65_536


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """`idle_s`: of silence of the server, then it is cut; 504 if it has not said anything.

    An answer is held back until there are `buffer_bytes` of it or `buffer_s` have passed, unless
    its header says `X-Accel-Buffering: no` and `obeys` is true, as it is of nginx.
    """

    idle_s: float = float("inf")
    buffer_bytes: int = 0
    buffer_s: float = float("inf")
    obeys: bool = True


class HttpProxy:
    """`async with`: listens on `port`. One request a connection, as nginx speaks to its servers."""

    def __init__(self, upstream_port: int, rules: ProxyRules) -> None:
        self._upstream_port = upstream_port
        self._rules = rules
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.num_requests = 0
        self.num_timed_out = 0  # answered with 504
        self.num_cut = 0  # in the middle of an answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> HttpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_on(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of the two has gone
        except asyncio.CancelledError:
            pass  # by `__aexit__`; Python 3.11's server takes a cancelled handler for a failed one
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_HEAD_END)
        body = await reader.readexactly(_content_length(head))
        self.num_requests += 1
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            to_upstream.write(_for_one_request(head) + body)
            answering = asyncio.create_task(self._answer(upstream, writer))
            leaving = asyncio.create_task(reader.read())
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                answering.cancel()
                leaving.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
        finally:
            to_upstream.close()

    async def _answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, rules = asyncio.get_running_loop(), self._rules
        held = bytearray()
        has_sent, holds = False, bool(rules.buffer_bytes)
        idle_at, flush_at = loop.time() + rules.idle_s, float("inf")
        while True:
            data = await _read_until(upstream, min(idle_at, flush_at))
            now = loop.time()
            if data is None and now < flush_at:
                await self._cut(writer, has_begun=has_sent or bool(held))
                return
            if data:
                if not has_sent and not held and rules.obeys:
                    holds = holds and b"x-accel-buffering: no" not in data.lower()
                idle_at, flush_at = now + rules.idle_s, min(flush_at, now + rules.buffer_s)
                held += data
            if data == b"" or not holds or len(held) >= rules.buffer_bytes or now >= flush_at:
                writer.write(bytes(held))
                await writer.drain()
                has_sent, flush_at = has_sent or bool(held), float("inf")
                held.clear()
            if data == b"":
                return

    async def _cut(self, writer: asyncio.StreamWriter, *, has_begun: bool) -> None:
        if has_begun:
            self.num_cut += 1
            writer.transport.abort()
            return
        self.num_timed_out += 1
        writer.write(_GATEWAY_TIMEOUT)
        await writer.drain()


async def _read_until(reader: asyncio.StreamReader, at: float) -> bytes | None:
    """None: nothing came until then."""
    try:
        async with asyncio.timeout_at(None if at == float("inf") else at):
            return await reader.read(_MAX_READ)
    except TimeoutError:
        return None


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _for_one_request(head: bytes) -> bytes:
    lines = [
        line
        for line in head.removesuffix(_HEAD_END).split(b"\r\n")
        if not line.lower().startswith(b"connection:")
    ]
    return b"\r\n".join([*lines, b"Connection: close"]) + _HEAD_END
