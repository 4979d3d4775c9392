"""A role that does nothing but be there: `python -m tests.deploy.stand_in_role ROLE FLAGS...`.

It writes the heartbeats, leases and answers by which a supervisor knows a role. Flags that it does
not know are ignored. STAND_IN_<ROLE> in the environment makes it misbehave: `refuse`, `crash`, or
`crash-while PATH`: as long as there is such a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.codec import encode
from shared.protocol.leases import PartitionOwner
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.subjects import pool_slug
from worker.start_gate import wait_at_gate

# Dies with its parent, as the real one does.
_ENGINE = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.1)
"""


def main() -> None:
    role, argv = sys.argv[1], sys.argv[2:]
    behaviour = os.environ.get(f"STAND_IN_{role.upper()}")
    print(f"{role} {' '.join(argv)}", file=sys.stderr)
    if behaviour == "refuse":
        print(f"{role}: the moon is in the wrong house; wait a month", file=sys.stderr)
        raise SystemExit(2)
    if behaviour == "crash":
        raise SystemExit(7)
    if behaviour is not None and Path(behaviour.removeprefix("crash-while ")).exists():
        print(f"{role}: the stars have gone out", file=sys.stderr)
        raise SystemExit(7)
    if role == "worker":  # its engine is a child process too: nobody may leave it behind
        subprocess.Popen([sys.executable, "-c", _ENGINE, str(os.getpid())])
    if "JETFLOCK_START_GATE" in os.environ:
        wait_at_gate()
    asyncio.run(run(role, argv))


def flag(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


async def run(role: str, argv: list[str]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    config = ClusterConfig(
        nats_url=os.environ["JETFLOCK_NATS_URL"],
        prefix=os.environ.get("JETFLOCK_PREFIX", "jf"),
        log_max_bytes=int(os.environ.get("JETFLOCK_LOG_MAX_BYTES", 8 << 30)),
        results_max_bytes=int(os.environ.get("JETFLOCK_RESULTS_MAX_BYTES", 1 << 30)),
        files_max_bytes=int(os.environ.get("JETFLOCK_FILES_MAX_BYTES", 1 << 30)),
        objects_max_bytes=int(os.environ.get("JETFLOCK_OBJECTS_MAX_BYTES", 1 << 30)),
        keys_max_bytes=int(os.environ.get("JETFLOCK_KEYS_MAX_BYTES", 256 << 20)),
        response_store_bytes=int(os.environ.get("JETFLOCK_RESPONSE_STORE_BYTES", 1 << 30)),
        dead_max_bytes=int(os.environ.get("JETFLOCK_DEAD_MAX_BYTES", 128 << 20)),
        queue_max_bytes=int(os.environ.get("JETFLOCK_QUEUE_MAX_BYTES", 1 << 30)),
    )
    async with open_cluster(config, role) as cluster:
        plays = {
            "frontend": [play_frontend],
            "detok": [play_detok],
            "front": [play_frontend, play_detok],
            "worker": [play_worker],
        }
        playing = [asyncio.create_task(play(cluster, argv)) for play in plays[role]]
        await stopping.wait()
        for each in playing:
            each.cancel()


async def play_frontend(cluster: Cluster, argv: list[str]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    host, port = flag(argv, "--host"), int(flag(argv, "--port"))
    await (await asyncio.start_server(answer, host, port)).serve_forever()


async def play_detok(cluster: Cluster, argv: list[str]) -> None:
    owners = cluster.bucket(cluster.subjects.owners_bucket)
    for partition in range(cluster.subjects.num_partitions):
        await owners.put(str(partition), encode(PartitionOwner("detok", "nonce")))
    await asyncio.Event().wait()


async def play_worker(cluster: Cluster, argv: list[str]) -> None:
    model, worker_id = flag(argv, "--model-name"), flag(argv, "--worker-id")
    pool = pool_slug(model)
    for step in range(1_000_000):
        state = WorkerState.LOADING if step < 2 else WorkerState.READY
        card = WorkerCard(worker_id, pool, model, "r", state, "loading weights", 0.3 * step)
        bucket = cluster.bucket(cluster.subjects.workers_bucket)
        await bucket.put(f"{pool}.{worker_id}", encode(card))
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    main()
