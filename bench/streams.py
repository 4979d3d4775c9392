"""`python -m bench.streams`: what one frontend holds when many streams are open and hardly move.

A scripted engine makes a token for each of them every few seconds. Told is how many got one, the
memory of each role for a stream, and its CPU time to open one and for an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from typing import Annotated

import cyclopts
import uvloop

from bench.burst import FirstByte
from bench.local_serve import ROLES, LocalServe, local_serve
from bench.stream_client import http_request

_NUM_ADDRESSES = 100  # of this machine: one has 28,000 ports
_WAIT_S = 600.0
_AGAIN_S = 1.0  # after a refusal
_WARM = 64


def payload(port: int) -> bytes:
    body = {
        "model": "jetflock-demo",
        "prompt": "Once upon a time",
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
    }
    return http_request(port, "/v1/completions", body)


class Streams:
    """Open connections, each with one answer that does not end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.num_refused = 0
        self._open: list[tuple[asyncio.Transport, FirstByte]] = []

    async def open(self, num: int, at_once: int) -> None:
        """Returns when each has a token, or was refused."""
        free = asyncio.Semaphore(at_once)

        async def one(idx: int) -> None:
            async with free:
                await self._open_one(idx)

        async with asyncio.TaskGroup() as tasks:
            for idx in range(num):
                tasks.create_task(one(idx))

    async def _open_one(self, idx: int) -> None:
        """One that is refused is asked for again."""
        source = (f"127.0.0.{1 + idx % _NUM_ADDRESSES}", 0)
        async with asyncio.timeout(_WAIT_S):
            while True:
                transport, protocol = await asyncio.get_running_loop().create_connection(
                    FirstByte, "127.0.0.1", self._port, local_addr=source
                )
                answer = protocol.request(transport, payload(self._port))
                while not protocol.num_events and not answer.done():
                    await asyncio.wait([answer], timeout=0.1)
                if protocol.num_events:
                    self._open.append((transport, protocol))
                    return
                self.num_refused += 1
                transport.close()
                await asyncio.sleep(_AGAIN_S)

    def close(self) -> None:
        for transport, _ in self._open:
            transport.close()

    @property
    def num_events(self) -> int:
        return sum(protocol.num_events for _, protocol in self._open)

    @property
    def num_cut(self) -> int:
        return sum(transport.is_closing() for transport, _ in self._open)


def memory_bytes(serve: LocalServe) -> dict[str, int]:
    """What each role would give back, if it ended."""
    return {
        role: sum(process.memory_full_info().uss for process in serve.role_processes(role))
        for role in ROLES
    }


async def measure(serve: LocalServe, num: int, at_once: int, watch_s: float) -> None:
    warm, streams = Streams(serve.port), Streams(serve.port)
    await warm.open(_WARM, at_once)
    before, begun_at, started = memory_bytes(serve), serve.cpu_s(), time.perf_counter()
    await streams.open(num, at_once)
    opened_s, num_events, cpu_s = time.perf_counter() - started, streams.num_events, serve.cpu_s()
    await asyncio.sleep(watch_s)
    after, num_more = memory_bytes(serve), streams.num_events - num_events
    cpu_us = {role: (spent - cpu_s[role]) * 1e6 for role, spent in serve.cpu_s().items()}
    print(
        f"{num} streams in {opened_s:.0f} s, {streams.num_refused} refused and asked for again, "
        f"{streams.num_cut} cut"
    )
    for role in ROLES:
        each = (after[role] - before[role]) / num / 1024
        opening_ms = (cpu_s[role] - begun_at[role]) / num * 1e3
        event_us = cpu_us[role] / max(1, num_more)
        print(
            f"  {role:12} {each:6.1f} KiB a stream, {opening_ms:5.2f} ms to open one, "
            f"{event_us:6.1f} us an event"
        )
    total = sum(after.values()) - sum(before.values())
    print(f"  {'all':12} {total / num / 1024:6.1f} KiB a stream, {num_more / watch_s:.0f} events/s")
    streams.close()
    warm.close()


def main(
    num: Annotated[int, cyclopts.Parameter(help="Streams, beside 64 that warm up.")] = 2000,
    token_s: Annotated[float, cyclopts.Parameter(help="Seconds from token to token.")] = 10.0,
    at_once: Annotated[int, cyclopts.Parameter(help="Streams that are opened at a time.")] = 200,
    watch_s: Annotated[float, cyclopts.Parameter(help="How long they are watched.")] = 20.0,
) -> None:
    """Measure the memory of open streams."""
    with contextlib.suppress(ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    room = str(num + num // 4 + 2 * _WARM)
    flags = (
        *("--scripted", "--scripted-token-low", "300", "--scripted-token-high", "1200"),
        *("--scripted-token-s", str(token_s), "--num-kv-tokens", str(1000 * num)),
        *("--queue-max-interactive", room),
        *("--queue-max-msgs", room, "--max-running", room),
        *("--max-step-tokens", str(2 * num + 4096)),
    )
    with local_serve(*flags) as serve:
        uvloop.run(measure(serve, num, at_once, watch_s))


if __name__ == "__main__":
    cyclopts.run(main)
