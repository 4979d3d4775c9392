"""Garbage on every subject of a running stack: no role dies, no stream changes, nothing stays."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgpack
import pytest

from shared.codec import decode
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard
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


async def until_nothing_waits(stack: RoleStack) -> None:
    deadline = time.monotonic() + 60
    while num_left := await num_waiting(stack):
        assert time.monotonic() < deadline, f"{num_left} requests are delivered again and again"
        await asyncio.sleep(0.2)


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

    await until_nothing_waits(stack)
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


async def test_garbage_in_the_ownership_logs_of_requests_changes_nothing(stack: RoleStack) -> None:
    """Before the first claim; under one, when its worker dies, and when it leaves; at an abort."""
    subjects, js = stack.cluster.subjects, stack.cluster.js

    async def spoil(rid: str) -> None:
        for data in (b"\xc1", msgpack.packb({"v": 2, "t": "claim", "worker": "w"}), b""):
            await js.publish(subjects.ownership(rid), data)

    await stack.wait_ready(0)
    early = Stream()
    body = completion_body(seed=0, max_tokens=NUM_TOKENS)
    waiting = asyncio.create_task(early.post(stack.url(), body))
    [queued] = await queued_rids(stack, 1)
    await spoil(queued)
    first = stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    streams = [early, *(Stream() for _ in range(NUM_STREAMS - 1))]
    running = [waiting] + [
        asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=seed, max_tokens=NUM_TOKENS))
        )
        for seed, stream in enumerate(streams)
        if seed
    ]
    for stream in streams:
        await stream.wait_for_tokens(20)
        await spoil(stream.rid)
    first.kill()
    second = stack.start_worker(*SCRIPTED)
    for stream in streams:
        await stream.wait_for_tokens(stream.position + 20)
        await spoil(stream.rid)
    third = stack.start_worker(*SCRIPTED)
    await stack.wait_until(lambda: "engine_ready" in third.log)
    await asyncio.to_thread(second.stop)
    async with asyncio.timeout(60):
        await asyncio.gather(*running)
    undisturbed = await asyncio.gather(
        *(run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS) for seed in range(NUM_STREAMS))
    )
    assert all(stream.error is None for stream in streams)
    assert [stream.text for stream in streams] == [stream.text for stream in undisturbed]

    aborted = Stream()
    body = completion_body(seed=9, max_tokens=NUM_TOKENS)
    task = asyncio.create_task(aborted.post(stack.url(), body))
    await aborted.wait_for_tokens(20)
    await spoil(aborted.rid)
    async with httpx.AsyncClient() as client:
        await client.post(f"{stack.url()}/abort_request", json={"rid": aborted.rid})
    async with asyncio.timeout(60):
        await task
    assert aborted.error is not None
    await until_nothing_waits(stack)


async def queued_rids(stack: RoleStack, num: int) -> list[str]:
    """Of requests that nobody has taken, as soon as there are so many."""
    subjects = stack.cluster.subjects
    pattern = subjects.request(POOL, "*")
    async with asyncio.timeout(20):
        while True:
            found = [
                decode(GenerateRequest, message.data).rid
                async for message in stack.cluster.js.direct_scan(subjects.requests_stream, pattern)
            ]
            if len(found) >= num:
                return found
            await asyncio.sleep(0.05)
