"""`python -m bench.burst`: more requests than the machine can serve, with other work on its cores.

A scripted engine. Either all requests come at once, or they keep coming, at a rate that no answer
slows down (open loop). Competitors keep half of each core busy. What is told: how
soon each request got its first byte, be it of an answer or of a refusal, and what the accepted got.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import cyclopts
import uvloop

from bench.local_serve import LocalServe, local_serve
from bench.stream_client import StreamProtocol, StreamResult, http_request
from jetflock.bench.stage_summary import percentile

NUM_TOKENS = 16
_BUSY_S = 0.005  # of every 10 ms
_PATIENCE_S = 120.0
_NUM_ADDRESSES = 100  # of this machine: one has 28,000 ports, those just closed among them
_REASON = re.compile(rb'"message": ?"([^"\d]{0,70})')  # without its figures


def _compete(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        until = time.monotonic() + _BUSY_S
        while time.monotonic() < until:
            pass
        time.sleep(_BUSY_S)


@contextmanager
def competitors(num_cores: int) -> Iterator[None]:
    """Half of so many cores is taken."""
    processes = [
        multiprocessing.Process(target=_compete, args=(core,), daemon=True)
        for core in sorted(os.sched_getaffinity(0))[:num_cores]
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


class FirstByte(StreamProtocol):
    """Notes when anything at all came back, why it was refused, and a connection that was lost."""

    first_byte_at = 0.0
    refusal = ""

    def data_received(self, data: bytes) -> None:
        self.first_byte_at = self.first_byte_at or time.perf_counter()
        if (reason := _REASON.search(data)) is not None:
            self.refusal = reason[1].decode()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            assert self._result is not None
            self.refusal = f"connection lost ({exc!r})"
            self._done.set_result(self._result)


class Outcome(NamedTuple):
    """What became of one request."""

    result: StreamResult
    first_byte_s: float  # inf: none came
    refusal: str


async def one(port: int, payload: bytes, idx: int = 0) -> Outcome:
    """One request over a connection of its own."""
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    source = (f"127.0.0.{1 + idx % _NUM_ADDRESSES}", 0)
    try:
        transport, protocol = await loop.create_connection(
            FirstByte, "127.0.0.1", port, local_addr=source
        )
    except OSError as exc:
        return Outcome(StreamResult(started), float("inf"), f"not connected ({exc})")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            result = await protocol.request(transport, payload)
    except TimeoutError:
        return Outcome(StreamResult(started), float("inf"), "no end")
    finally:
        transport.close()
    result.sent_at = started
    first_byte_s = (protocol.first_byte_at or float("inf")) - started
    return Outcome(result, first_byte_s, protocol.refusal)


async def open_loop(port: int, rate: float, seconds: float) -> list[Outcome]:
    payload = _payload(port)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        sent = []
        for idx in range(int(rate * seconds)):
            delay_s = started + idx / rate - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            sent.append(tasks.create_task(one(port, payload, idx)))
    return [task.result() for task in sent]


async def at_once(port: int, num_streams: int) -> list[Outcome]:
    payload = _payload(port)
    return await asyncio.gather(*(one(port, payload, idx) for idx in range(num_streams)))


def _payload(port: int) -> bytes:
    body = {
        "model": "jetflock-demo",
        "prompt": "Once upon a time",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    return http_request(port, "/v1/completions", body)


def report(name: str, outcomes: list[Outcome], serve: LocalServe) -> None:
    results = [outcome.result for outcome in outcomes]
    ok = [result for result in results if result.status == 200]
    whole = [result for result in ok if result.num_tokens == NUM_TOKENS]
    first = sorted(outcome.first_byte_s for outcome in outcomes)
    refused = sorted(each.first_byte_s for each in outcomes if each.result.status not in (0, 200))
    statuses = Counter(result.status for result in results)
    span_s = max((r.ended_at for r in whole), default=0.0) - min(r.sent_at for r in results)
    memory = sum(p.memory_info().rss for p in serve.process.children(recursive=True)) >> 20
    print(f"{name}: {len(results)} requests, by status {dict(sorted(statuses.items()))}")
    for refusal, num in Counter(each.refusal for each in outcomes if each.refusal).most_common():
        print(f"  {num} times {refusal}")
    print(f"  first byte s: p50 {percentile(first, 50):.2f} p99 {percentile(first, 99):.2f}")
    if refused:
        print(f"  refusals s: p50 {percentile(refused, 50):.2f} p99 {percentile(refused, 99):.2f}")
    if whole:
        ttft = [result.ttft_s for result in whole]
        print(f"  first token s: p50 {percentile(ttft, 50):.2f} p99 {percentile(ttft, 99):.2f}")
        print(f"  {len(whole)} of {len(ok)} accepted are whole, {len(whole) / span_s:.0f}/s")
    print(f"  resident memory of the stack: {memory} MiB", flush=True)


def main(
    streams: Annotated[int, cyclopts.Parameter(help="Requests at once; 0: open loop.")] = 2000,
    rate: Annotated[float, cyclopts.Parameter(help="Requests a second, of the open loop.")] = 500,
    seconds: Annotated[float, cyclopts.Parameter(help="How long the open loop lasts.")] = 60,
    competing_cores: Annotated[int, cyclopts.Parameter(help="Cores of which half is taken.")] = 2,
    slots: Annotated[int, cyclopts.Parameter(help="Requests that the worker runs at once.")] = 256,
    token_s: Annotated[float, cyclopts.Parameter(help="Seconds a token of the engine.")] = 0.01,
) -> None:
    """Measure what becomes of requests when too many come."""
    with contextlib.suppress(ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flags = ("--scripted", "--scripted-token-s", str(token_s), "--max-running", str(slots))
    with local_serve(*flags) as serve, competitors(competing_cores):
        run = at_once(serve.port, streams) if streams else open_loop(serve.port, rate, seconds)
        report("at once" if streams else f"{rate:g}/s", uvloop.run(run), serve)
        time.sleep(2.0)  # after that it is as before
        report("2 s later, alone", [uvloop.run(one(serve.port, _payload(serve.port)))], serve)


if __name__ == "__main__":
    cyclopts.run(main)
