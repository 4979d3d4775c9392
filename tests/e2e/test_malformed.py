"""Garbage on every subject of a running stack: no role dies, no stream changes, nothing stays."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.codec import decode
from shared.protocol import WorkerCard
from shared.subjects import pool_slug
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.garbage import BOMBS, SMALL, subjects_to_disturb

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STREAMS = 4
NUM_TOKENS = 900
POOL = pool_slug(MODEL_NAME)
BOMBS_A_SUBJECT = 2
MAX_LOG_LINE = 4000


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path) as running:
        yield running


async def targets(stack: RoleStack) -> list[str]:
    """Those of the roles that run, by their own ids, and of nobody."""
    subjects = stack.cluster.subjects
    workers = await stack.cluster.bucket(subjects.workers_bucket).entries()
    roles = await stack.cluster.bucket(subjects.roles_bucket).entries()
    worker = decode(WorkerCard, workers[0].value).worker
    [frontend] = [entry.key for entry in roles if entry.key.startswith("frontend")]
    found = subjects_to_disturb(subjects, POOL, worker, frontend)
    return [*found, *(f"jetflock.{name}" for name in ("generate", "resume", "abort", "models"))]


async def disturb(stack: RoleStack) -> int:
    bombs = itertools.cycle(BOMBS.values())
    nc, num_sent = stack.cluster.nc, 0
    for subject in await targets(stack):
        messages = [*SMALL, *(next(bombs) for _ in range(BOMBS_A_SUBJECT))]
        for message in messages:
            await nc.publish(subject, message, reply=nc.new_inbox())
        num_sent += len(messages)
        await nc.flush(30)
    return num_sent


async def num_waiting(stack: RoleStack) -> int:
    """Requests that wait for the workers, or are on their way to one."""
    subjects, total = stack.cluster.subjects, 0
    for name in subjects.consumers(POOL):
        info = await stack.cluster.js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{name}")
        total += info["num_pending"] + info["num_ack_pending"]
    return total


async def test_garbage_on_every_subject_harms_nobody(stack: RoleStack) -> None:
    workers = [stack.start_worker(*SCRIPTED), stack.start_worker(*SCRIPTED)]
    await stack.wait_ready(2)
    engines = [worker.engine().pid for worker in workers]
    streams = [Stream() for _ in range(NUM_STREAMS)]
    running = [
        asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=seed, max_tokens=NUM_TOKENS))
        )
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(20)
    num_sent = await disturb(stack)
    assert num_sent > 1000
    async with asyncio.timeout(120):
        await asyncio.gather(*running)

    deadline = time.monotonic() + 30
    while num_left := await num_waiting(stack):
        assert time.monotonic() < deadline, f"{num_left} of the garbage are delivered again"
        await asyncio.sleep(0.2)
    again = [
        await run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS // 4)
        for seed in range(NUM_STREAMS)
    ]
    for stream, undisturbed in zip(streams, again, strict=True):
        assert stream.is_done
        assert stream.error is None
        assert stream.text.startswith(undisturbed.text)
    assert [worker.engine().pid for worker in workers] == engines
    for role in stack.roles:
        assert role.is_alive, role.name
        assert "Traceback" not in role.log, role.name
        assert "secretsecret" not in role.log, role.name
        assert max(map(len, role.log.splitlines()), default=0) < MAX_LOG_LINE, role.name
