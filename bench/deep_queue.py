"""`python -m bench.deep_queue`: a frontend is killed while a thousand clients wait in a deep queue.

Beside them strangers ask for ids that do not exist. Prints how long after its return each client
had the header of its resumed stream, and how many of their requests the sweep of the dead frontend
has ended: none, or the command fails.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import msgspec
import uvloop

from bench.local_serve import LocalServe, local_serve
from bench.nats_servers import NatsServers
from jetflock.bench.stage_summary import percentile
from jetflock.running.existing_cluster import existing_cluster
from shared.cluster import Cluster
from shared.config import ClusterConfig
from shared.protocol.codec import encode
from shared.protocol.log_records import End
from shared.protocol.request import GenerateRequest
from shared.subjects import new_rid

MODEL = "jetflock-demo"
ORPHAN_WAIT_S = 6.0
GOAL_S = 3.0
_CONNECT_RETRY_S = 0.05
_NUM_STRANGERS = 16
_TIMEOUT_S = 60.0


@dataclass
class Strangers:
    """Ask for ids that nobody has, so many times a second."""

    port: int
    per_s: float
    num_answered: int = 0

    async def run(self) -> None:
        """Until cancelled; a connection that is gone is made again."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_NUM_STRANGERS):
                tasks.create_task(self._ask())

    async def _ask(self) -> None:
        pause_s = _NUM_STRANGERS / self.per_s
        due_at = time.monotonic()
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                while True:
                    writer.write(_get(f"/v1/streams/{new_rid()}"))
                    await _head(reader)
                    self.num_answered += 1
                    due_at = max(due_at + pause_s, time.monotonic() - 1.0)
                    await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(_CONNECT_RETRY_S)


@dataclass
class Waiting:
    """A client whose request stands in the queue."""

    port: int
    rid: str = ""
    status: int = 0
    header_at: float = 0.0
    _writer: asyncio.StreamWriter | None = None

    async def ask(self) -> None:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1000, "stream": True}
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer.write(_post("/v1/completions", body))
        head = await _head(reader)
        assert head[""] == "200", head
        self.rid = head["x-request-id"]

    async def resume(self) -> None:
        """As soon as somebody listens; the stream stays open."""
        while True:
            try:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
                self._writer.write(_get(f"/v1/streams/{self.rid}"))
                head = await _head(reader)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(_CONNECT_RETRY_S)
            else:
                self.status, self.header_at = int(head[""]), time.monotonic()
                return

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Status (under "") and headers; a body of known length is read and dropped."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    head = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    await reader.readexactly(int(head.get("content-length", 0)))
    return head | {"": first.split()[1]}


async def fill(cluster: Cluster, like: GenerateRequest, count: int) -> None:
    """So many requests of another frontend, which lives."""
    free = asyncio.Semaphore(256)

    async def put() -> None:
        async with free:
            rid = new_rid()
            reply = msgspec.structs.replace(like.reply, group_id=rid, frontend_id="")
            request = msgspec.structs.replace(like, rid=rid, reply=reply)
            await cluster.queue.put(request, "interactive", encode(request))

    for start in range(0, count, 5000):
        await asyncio.gather(*(put() for _ in range(min(5000, count - start))))


async def run(
    serve: LocalServe, config: ClusterConfig, num_clients: int, depth: int, per_s: float
) -> int:
    clients = [Waiting(serve.port) for _ in range(num_clients)]
    await clients[0].ask()
    async with existing_cluster(config, "bench") as cluster:
        first = await cluster.queue.find(clients[0].rid)
        assert first is not None
        await fill(cluster, first, depth)
        for start in range(1, num_clients, 50):
            await asyncio.gather(*(client.ask() for client in clients[start : start + 50]))
        strangers = Strangers(serve.port, per_s)
        asking = asyncio.create_task(strangers.run())
        await asyncio.sleep(3.0)
        before = strangers.num_answered
        await asyncio.sleep(2.0)
        print(f"strangers' ids: {(strangers.num_answered - before) / 2.0:.0f}/s")
        [frontend] = serve.role_processes("frontend")
        frontend.kill()
        killed_at = time.monotonic()
        resuming = [asyncio.create_task(client.resume()) for client in clients]
        back_at = await _back_at(serve.port)
        print(f"the frontend is back after {back_at - killed_at:.2f} s")
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.gather(*resuming)
        took = sorted(client.header_at - back_at for client in clients)
        print(
            f"headers after its return: p50 {percentile(took, 50):.2f} s, "
            f"p99 {percentile(took, 99):.2f} s, last {took[-1]:.2f} s"
        )
        num_refused = sum(client.status != 200 for client in clients)
        await asyncio.sleep(ORPHAN_WAIT_S + 8.0)  # its heartbeat expires, and it is swept
        num_ended = await _num_ended(cluster, clients)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    print(f"{num_refused} refused, {num_ended} ended of {num_clients} over {depth} queued")
    for client in clients:
        client.close()
    return int(bool(num_refused or num_ended or took[-1] > GOAL_S))


async def _back_at(port: int) -> float:
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_get("/health/ready"))
                if (await _head(reader))[""] == "200":
                    writer.close()
                    return time.monotonic()
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.02)


async def _num_ended(cluster: Cluster, clients: list[Waiting]) -> int:
    lasts = [await cluster.ownership.last(client.rid) for client in clients]
    return sum(last is not None and isinstance(last.record, End) for last in lasts)


def main(
    num_clients: Annotated[int, cyclopts.Parameter(help="Clients that wait.")] = 1000,
    depth: Annotated[int, cyclopts.Parameter(help="Requests before them in the queue.")] = 100_000,
    strangers_per_s: Annotated[float, cyclopts.Parameter(help="Unknown ids a second.")] = 1000.0,
    servers: Annotated[Literal[1, 3], cyclopts.Parameter(help="How many nats-servers.")] = 1,
) -> None:
    """Run it on this machine."""
    limit = str(2 * (num_clients + depth))
    flags = [
        "--scripted", "--max-running", "1", "--scripted-token-s", "1",
        "--queue-max-msgs", limit, "--queue-max-interactive", limit,
        "--queue-max-bytes", str(8 << 30), "--max-deadline-s", "3600",
        "--orphan-wait-s", str(ORPHAN_WAIT_S),
    ]  # fmt: skip
    with _nats(servers) as nats:
        flags += ["--nats-url", nats.urls, "--replicas", str(servers)]
        flags += ["--nats-connect-timeout-s", "60"]
        with local_serve(*flags, timeout_s=120) as serve:
            config = ClusterConfig(nats_url=nats.urls, replicas=servers)
            raise SystemExit(uvloop.run(run(serve, config, num_clients, depth, strangers_per_s)))


@contextmanager
def _nats(count: int) -> Iterator[NatsServers]:
    with tempfile.TemporaryDirectory() as folder:
        servers = NatsServers(count, Path(folder))
        try:
            yield servers
        finally:
            servers.stop()


if __name__ == "__main__":
    cyclopts.run(main)
