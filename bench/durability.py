"""`python -m bench.durability`: what it costs that NATS flushes each message to its disk.

A scripted engine that is as fast as it goes, over one nats-server or three on this machine, which
flush every two minutes (NATS's default) or at each message (`sync_interval: always`). The three
share one disk and the cores: three machines have three disks.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from bench.local_serve import LocalServe, local_serve
from bench.nats_servers import NatsServers
from bench.plane import NUM_TOKENS, Load, Row, print_scenario, run_streams
from bench.plane_target import FLAGS, target_of
from jetflock.bench.stage_summary import percentile

_START_S = 30.0


@contextmanager
def _serving(
    count: int, sync_interval: str, folder: Path
) -> Iterator[tuple[LocalServe, NatsServers]]:
    servers = NatsServers(count, folder, sync_interval)
    try:
        flags = ("--nats-url", servers.urls, "--replicas", str(count))
        connecting = ("--nats-connect-timeout-s", str(_START_S))
        with local_serve(*FLAGS["fast"], *flags, *connecting, timeout_s=4 * _START_S) as serve:
            yield serve, servers
    finally:
        servers.stop()


def _measure(serve: LocalServe, servers: NatsServers, concurrency: int, num_requests: int) -> Row:
    def cpu_s() -> float:
        return sum(serve.cpu_s().values()) + servers.cpu_s()

    before, started = cpu_s(), time.perf_counter()
    results = run_streams(target_of(serve), Load(concurrency, num_requests))
    elapsed_s = time.perf_counter() - started
    num_tokens = num_requests * NUM_TOKENS
    return {
        "requests/s": num_requests / elapsed_s,
        "tokens/s": num_tokens / elapsed_s,
        "CPU us/token": (cpu_s() - before) / num_tokens * 1e6,
        "first token p50 ms": percentile([each.ttft_s * 1e3 for each in results], 50),
        "first token p99 ms": percentile([each.ttft_s * 1e3 for each in results], 99),
        "answer p99 ms": percentile([(each.ended_at - each.sent_at) * 1e3 for each in results], 99),
    }


def main(
    servers: Annotated[Literal[1, 3], cyclopts.Parameter(help="How many nats-servers.")] = 1,
    sync_interval: Annotated[str, cyclopts.Parameter(help="As NATS takes it.")] = "2m",
    concurrency: int = 64,
    num_requests: int = 256,
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 3,
    folder: Annotated[Path | None, cyclopts.Parameter(help="On the disk to be measured.")] = None,
) -> None:
    """Measure one setting."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as store,
        _serving(servers, sync_interval, Path(store)) as (serve, nats),
    ):
        run_streams(target_of(serve), Load(4, 8))  # warm up
        rows = [_measure(serve, nats, concurrency, num_requests) for _ in range(repeat)]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print_scenario(f"{servers} server(s), sync_interval {sync_interval}; load {load}", rows)


if __name__ == "__main__":
    cyclopts.run(main)
