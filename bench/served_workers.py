"""Several workers as children of a benchmark, all of them ready before it begins."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import uvloop

from bench.local_serve import LocalServe, local_serve
from shared.broker.kv_bucket import readable
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.role_cards import WorkerCard, WorkerState


@contextmanager
def serve_workers(
    num_workers: int, nats_port: int, *flags: str, timeout_s: float = 300.0
) -> Iterator[LocalServe]:
    """Workers of a thread each, and what they need, with a store of its own."""
    ours = ("--workers", str(num_workers), "--nats-port", str(nats_port), "--num-threads", "1")
    with local_serve(*flags, *ours, timeout_s=timeout_s) as serve:
        uvloop.run(_wait_for_workers(nats_port, num_workers))
        yield serve


@contextmanager
def another_worker(nats_port: int, num_workers: int, *argv: str) -> Iterator[None]:
    """One more, which serve did not start; `num_workers` with it."""
    command = [sys.executable, "-m", "jetflock", "worker", *argv, "--num-threads", "1"]
    nats_url = ("--nats-url", f"nats://127.0.0.1:{nats_port}", "--log-level", "warning")
    process = subprocess.Popen([*command, *nats_url])
    try:
        uvloop.run(_wait_for_workers(nats_port, num_workers))
        yield
    finally:
        process.terminate()
        process.wait()


def open_own_cluster(nats_port: int) -> AbstractAsyncContextManager[Cluster]:
    return open_cluster(ClusterConfig(nats_url=f"nats://127.0.0.1:{nats_port}"), "bench")


async def _wait_for_workers(nats_port: int, num_workers: int) -> None:
    async with open_own_cluster(nats_port) as cluster, asyncio.timeout(300):
        bucket = cluster.bucket(cluster.subjects.workers_bucket)
        while True:
            cards = readable(WorkerCard, await bucket.entries())
            if sum(card.state is WorkerState.READY for card in cards) >= num_workers:
                return
            await asyncio.sleep(0.2)
