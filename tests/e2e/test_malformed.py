"""Garbage on every subject of a running stack: no role dies, no stream changes, nothing stays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgpack
import pytest

from shared.protocol.codec import decode
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard
from shared.subjects import new_rid, pool_slug
from tests.e2e.metrics_stack import scrape, until_shown
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks
from tests.garbage import BOMBS, SMALL, subjects_to_disturb
from tests.nats_server import free_port
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STREAMS = 4
NUM_TOKENS = 450
POOL = pool_slug(MODEL_NAME)
BOMBS_A_SUBJECT = 2
MAX_LOG_LINE = 4000


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path) as running:
        yield running


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[tuple[RoleStack, list[str]]]:
    """A stack, and the addresses of all its roles' metrics."""
    ports: list[int] = []

    def flags(role: str) -> list[str]:
        if role == "frontend":
            return []
        ports.append(free_port())
        return ["--metrics-port", str(ports[-1])]

    async with RoleStack(tmp_path, role_flags=flags) as running:
        running.start_worker(*SCRIPTED)
        running.start_worker(*SCRIPTED)
        yield running, [f"{running.url()}/metrics", *(f"http://127.0.0.1:{p}/" for p in ports)]


async def targets(stack: RoleStack) -> list[str]:
    """Those of the roles that run, by their own ids, and of nobody."""
    subjects = stack.cluster.subjects
    workers = await stack.cluster.bucket(subjects.workers_bucket).entries()
    roles = await stack.cluster.bucket(subjects.roles_bucket).entries()
    worker = decode(WorkerCard, workers[0].value).worker
    [frontend] = [entry.key for entry in roles if entry.key.startswith("frontend")]
    found = subjects_to_disturb(subjects, POOL, worker, frontend)
    return [*found, *(f"jetflock.{name}" for name in ("generate", "resume", "abort", "models"))]


async def disturb(stack: RoleStack, num_rounds: int = 1) -> int:
    bombs = itertools.cycle(BOMBS.values())
    nc, num_sent = stack.cluster.nc, 0
    for subject in await targets(stack) * num_rounds:
        messages = [*SMALL, *(next(bombs) for _ in range(BOMBS_A_SUBJECT))]
        for message in messages:
            inbox = f"_INBOX.{new_rid()}" if subject.startswith("jetflock.") else nc.new_inbox()
            await nc.publish(subject, message, reply=inbox)
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
    async for _ in Looks(60, "requests are delivered again and again", 0.2):
        if not await num_waiting(stack):
            return


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
        await stream.wait_for_tokens(10)
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


async def stalls(url: str) -> dict[str, float]:
    """Looks at an event loop, by the bound below which its own work kept it waiting."""
    [histogram] = [
        metric for metric in await scrape(url) if metric.name == "jetflock_event_loop_stall_seconds"
    ]
    return {s.labels["le"]: s.value for s in histogram.samples if s.name.endswith("_bucket")}


async def num_malformed(url: str) -> float:
    return sum(
        sample.value
        for metric in await scrape(url)
        if metric.name == "jetflock_malformed_messages"
        for sample in metric.samples
    )


async def post_bombs(url: str) -> None:
    """Bodies that are slow to read for who reads them carelessly."""
    head = f'{{"model": "{MODEL_NAME}", "max_tokens": 1, "prompt": '.encode()
    bodies = {
        "deep": b"[" * 1_000_000,
        "deep in a field": head + b"[" * 1_000_000,
        "a long number": head + b"9" * 1_000_000 + b"}",
        "many keys": b"{" + b",".join(b'"k%d":0' % i for i in range(100_000)) + b"}",
        "many biases": b'{"logit_bias": {'
        + b",".join(b'"%d":1' % i for i in range(150_000))
        + b"}, "
        + head[1:]
        + b'"x"}',
        "keys in a field": head + b"{" + b",".join(b'"k%d":0' % i for i in range(190_000)) + b"}}",
        "many lists": head + b"[" + b",".join([b"[]"] * 300_000) + b"]}",
        "many tokens": head + b"[" + b",".join([b"7"] * 1_000_000) + b"]}",
        "a long text": head + b'"' + b"once upon a time " * 100_000 + b'"}',
        "one long word": head + b'"' + b"a" * 1_000_000 + b'"}',
        "escapes": head + b'"' + rb"\ud83d" * 200_000 + b'"}',
    }
    async with httpx.AsyncClient(timeout=60) as client:
        for name, body in bodies.items():
            headers = {"content-type": "application/json"}
            answer = await client.post(f"{url}/v1/completions", content=body, headers=headers)
            assert 400 <= answer.status_code < 500, (name, answer.status_code)


async def test_garbage_keeps_no_event_loop_from_turning(
    measured: tuple[RoleStack, list[str]],
) -> None:
    """CPU time of the loop's own thread, in a look every 50 ms: of a stall it sees at least what is
    left behind the next look that was due, so that a stall of 100 ms cannot hide, and one of 75 ms
    hides from every second look. Each kind of message comes many times.
    """
    stack, urls = measured
    await stack.wait_ready(2)
    for url in urls:
        await until_shown(url, "jetflock_event_loop_stall_seconds")
    before = [await stalls(url) for url in urls]
    await disturb(stack, num_rounds=2)
    await until_nothing_waits(stack)
    await post_bombs(stack.url())
    await time_to_err(0.2)  # the last look is over
    for url, old in zip(urls, before, strict=True):
        new = await stalls(url)
        told = {bound: new[bound] - old[bound] for bound in new}
        assert told["+Inf"] > 5
        assert told["0.05"] == told["+Inf"], f"{url}: {told}"
        assert await num_malformed(url) > 50, url


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
        await stream.wait_for_tokens(10)
        await spoil(stream.rid)
    first.kill()
    second = stack.start_worker(*SCRIPTED)
    for stream in streams:
        await stream.wait_for_tokens(stream.position + 10)
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
    await aborted.wait_for_tokens(10)
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
    pattern = subjects.requests(POOL, "*")
    async for _ in Looks():
        found = [
            decode(GenerateRequest, message.data).rid
            async for message in stack.cluster.js.direct_scan(subjects.requests_stream, pattern)
        ]
        if len(found) >= num:
            break
    return found
