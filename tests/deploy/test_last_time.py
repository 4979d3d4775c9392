"""What a new `jetflock serve` forgets of the one before, and what it leaves to others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from deploy.local.last_time import forget_last_time
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.machine.process_age import process_age_s
from shared.protocol.codec import encode
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard, WorkerState
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

HERE = socket.gethostname()
POOL = "pool"


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


async def show_worker(cluster: Cluster, name: str, host: str, pid: int, at: float) -> None:
    card = WorkerCard(name, POOL, "m", "r", WorkerState.READY, host=host, pid=pid, at=at)
    bucket = cluster.bucket(cluster.subjects.workers_bucket)
    await bucket.put(f"{POOL}.{name}", encode(card))


async def test_workers_of_this_host_that_died_are_forgotten_and_no_others(
    cluster: Cluster, dead_pid: int
) -> None:
    now, age_s = time.time(), process_age_s(os.getpid())
    assert age_s is not None
    await show_worker(cluster, "died", HERE, dead_pid, now)
    await show_worker(cluster, "had-this-pid-before", HERE, os.getpid(), now - age_s - 1.0)
    await show_worker(cluster, "lives", HERE, os.getpid(), now)
    await show_worker(cluster, "elsewhere", "another-host", dead_pid, now)
    workers = cluster.bucket(cluster.subjects.workers_bucket)
    await workers.put(f"{POOL}.unreadable", b"\xc1")
    assert sorted(await forget_last_time(cluster, None)) == ["died", "had-this-pid-before"]
    left = [entry.key.removeprefix(f"{POOL}.") for entry in await workers.entries()]
    assert sorted(left) == ["elsewhere", "lives", "unreadable"]


async def test_supervisors_of_this_host_that_died_are_forgotten_and_no_others(
    cluster: Cluster, dead_pid: int
) -> None:
    roles, now = cluster.bucket(cluster.subjects.roles_bucket), time.time()
    for name, host, pid in (
        ("died", HERE, dead_pid),
        ("lives", HERE, os.getpid()),
        ("elsewhere", "another-host", dead_pid),
    ):
        await roles.put(name, encode(RoleCard(name, SUPERVISOR, host, pid, now)))
    await forget_last_time(cluster, None)
    assert sorted(entry.key for entry in await roles.entries()) == ["elsewhere", "lives"]


def test_whoever_waits_to_be_reaped_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_age_s(process.pid) is None
    process.wait()


def test_a_process_is_as_old_as_it_has_run() -> None:
    before = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        age_s = process_age_s(process.pid)
        assert age_s is not None
        assert age_s < time.monotonic() - before + 0.1
        process.kill()
