"""A load client that costs little: raw HTTP over asyncio, one connection a stream.

It reads token positions from the SSE ids, so that several tokens in one event are counted as such.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_EVENT = b"\ndata: {"
_CONTENT = b'"content":"'
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)[,}]')
STORY = "Tell me a story about a dragon."


@dataclass(slots=True)
class StreamResult:
    """What one streamed answer looked like from outside. Times are from `time.perf_counter`."""

    sent_at: float
    status: int = 0
    num_tokens: int = 0
    num_events: int = 0  # with data, but for the last one, which says that it is done
    ended_at: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # time, tokens so far

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0][0] - self.sent_at

    @property
    def token_s(self) -> float:
        """Mean time per token after the first event."""
        first, last = self.arrivals[0], self.arrivals[-1]
        return (last[0] - first[0]) / max(1, last[1] - first[1])

    @property
    def gaps_s(self) -> list[float]:
        """Time between events that brought tokens."""
        times = [at for at, _ in self.arrivals]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


class StreamProtocol(asyncio.Protocol):
    """One connection: a request at a time."""

    tail_len = 160  # an id line may be cut in two
    wants_usage = False

    def __init__(self) -> None:
        self._result: StreamResult | None = None
        self._done: asyncio.Future[StreamResult] | None = None
        self._tail = b""
        self._socket: socket.socket | None = None  # where each read is acknowledged at once

    @property
    def num_events(self) -> int:
        """Of the answer that comes, or came last."""
        return 0 if self._result is None else self._result.num_events

    def ack_at_once(self, transport: asyncio.Transport) -> None:
        """From now on: the kernel forgets it with each answer that it sends."""
        self._socket = transport.get_extra_info("socket")

    def request(self, transport: asyncio.Transport, payload: bytes) -> asyncio.Future[StreamResult]:
        self._done = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._result = StreamResult(time.perf_counter())
        transport.write(payload)
        return self._done

    def data_received(self, data: bytes) -> None:
        result = self._result
        if result is None or self._done is None:
            return
        now = time.perf_counter()
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = self._tail + data
        result.num_events += data.count(_EVENT) - self._tail.count(_EVENT)
        if result.status == 0:
            result.status = int(data[9:12])
        num_tokens = self._count_tokens(data, result.num_tokens)
        if num_tokens > result.num_tokens:
            result.num_tokens = num_tokens
            result.arrivals.append((now, num_tokens))
        self._tail = data[-self.tail_len :]
        is_whole = data.endswith(b"0\r\n\r\n") if result.status == 200 else data.endswith(b"}")
        if is_whole and not self._done.done():
            result.ended_at = now
            self._done.set_result(result)

    def _count_tokens(self, data: bytes, num_so_far: int) -> int:
        """By the position in the last event's id."""
        start = data.rfind(b"\nid: ")
        end = data.find(b"\n", start + 1)
        return int(data[start + 5 : end].split(b".")[1]) if end > start >= 0 else num_so_far

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the stream"))


class PeerProtocol(StreamProtocol):
    """For servers without positions in their events: the usage at the end tells the tokens.

    Until then one event with content is one.
    """

    tail_len = 200
    wants_usage = True

    def _count_tokens(self, data: bytes, num_so_far: int) -> int:
        if usage := _USAGE.findall(data):
            return int(usage[-1])
        return num_so_far + data.count(_CONTENT) - self._tail.count(_CONTENT)


class UsageProtocol(StreamProtocol):
    """For vLLM with `continuous_usage_stats`: every event says how many tokens there are."""

    tail_len = 200

    def _count_tokens(self, data: bytes, num_so_far: int) -> int:
        counts = _USAGE.findall(data)
        return int(counts[-1]) if counts else num_so_far


def http_request(port: int, path: str, body: object) -> bytes:
    """A whole POST of JSON, ready to be sent."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def stream_at_once(
    port: int, payloads: Sequence[bytes], protocol_type: type[StreamProtocol]
) -> list[StreamResult]:
    """Opens a connection for each payload, then sends them all; in the order of the payloads."""
    loop = asyncio.get_running_loop()
    connections = [await loop.create_connection(protocol_type, "127.0.0.1", port) for _ in payloads]
    try:
        answers = [
            protocol.request(transport, payload)
            for (transport, protocol), payload in zip(connections, payloads, strict=True)
        ]
        return await asyncio.gather(*answers)
    finally:
        for transport, _ in connections:
            transport.close()


class StreamClient:
    """Streams chat answers of `num_tokens` tokens, `concurrency` at a time."""

    def __init__(
        self,
        port: int,
        model: str,
        num_tokens: int,
        protocol: type[StreamProtocol] = StreamProtocol,
        *,
        acks_at_once: bool = False,
    ) -> None:
        self._port = port
        self._acks_at_once = acks_at_once
        self._protocol = protocol
        body = {
            "model": model,
            "messages": [{"role": "user", "content": STORY}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
            **({"stream_options": {"include_usage": True}} if protocol.wants_usage else {}),
        }
        self._payload = http_request(port, "/v1/chat/completions", body)

    async def run(self, concurrency: int, num_requests: int) -> list[StreamResult]:
        """Closed loop: each connection sends its next request when the last one is answered."""
        results: list[StreamResult] = []
        left = num_requests

        async def one_connection() -> None:
            nonlocal left
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(
                self._protocol, "127.0.0.1", self._port
            )
            if self._acks_at_once:
                protocol.ack_at_once(transport)
            try:
                while left > 0:
                    left -= 1
                    results.append(await protocol.request(transport, self._payload))
            finally:
                transport.close()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(one_connection())
        return results
