"""The same load as `bench.plane` against another OpenAI-compatible server, for a comparison.

    python -m bench.peer --port 18000 --model mock --process dynamo.frontend --process dynamo.mocker

docs/performance.md says how to start NVIDIA Dynamo with its mocked engine.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import cyclopts
import psutil
import uvloop

from bench.plane import NUM_TOKENS
from bench.stream_client import PeerProtocol, StreamClient
from jetflock.bench.stage_summary import percentile


def find_processes(words: list[str]) -> list[psutil.Process]:
    """Processes whose command line holds one of the words; never this one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "bench.peer" not in line and any(word in line for word in words):
            found.append(process)
    return found


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main(
    *,
    port: int,
    model: str,
    process: Annotated[list[str], cyclopts.Parameter(help="Word in a server's command line.")],
    streams: tuple[int, ...] = (16, 64, 256),
    repeat: int = 5,
) -> None:
    """Stream chat answers of 128 tokens; print throughput, latency and CPU per token."""
    processes = find_processes(process)
    client = StreamClient(port, model, NUM_TOKENS, PeerProtocol)
    uvloop.run(client.run(4, 8))
    for concurrency in streams:
        num_requests = 4 * concurrency if concurrency >= 64 else 12 * concurrency
        rates, cpus, gaps = [], [], []
        for _ in range(repeat):
            before, started = cpu_s(processes), time.perf_counter()
            results = uvloop.run(client.run(concurrency, num_requests))
            rates.append(num_requests * NUM_TOKENS / (time.perf_counter() - started))
            cpus.append((cpu_s(processes) - before) / (num_requests * NUM_TOKENS) * 1e6)
            gaps += [result.token_s * 1e3 for result in results]
        print(
            f"{concurrency:4} streams: {statistics.median(rates):8.0f} tokens/s, "
            f"{statistics.median(cpus):6.1f} us of CPU per token, time/token p50 "
            f"{statistics.median(gaps):.2f} ms, p99 {percentile(gaps, 99):.2f} ms"
        )


if __name__ == "__main__":
    cyclopts.run(main)
