"""A service moves to other streams while streams run: real roles, and the real command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.config import ClusterConfig
from shared.protocol.bills import decode_bills
from tests.e2e.migrating import NEW, is_announced, migrate, num_ready, start_migrate, workers_of
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import eventually, eventually_async
from tests.nats_users import NatsUsers

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_TOKENS = 60
NUM_LONG_TOKENS = 750  # 15 s
NUM_STREAMS = 4


@pytest.fixture
def users(tmp_path: Path) -> NatsUsers:
    return NatsUsers(tmp_path / "nats", [], prefixes=("jf", NEW))


@pytest.fixture
async def stack(tmp_path: Path, users: NatsUsers) -> AsyncIterator[RoleStack]:
    """Each role has the rights of its code on both sides, and no others."""
    admin = ClusterConfig(
        nats_user="admin", nats_password_file=users.password_file("admin"), bills_ttl_s=86_400.0
    )

    def flags(role: str) -> list[str]:
        service = [
            "--nats-callers", users.callers, "--nats-service-user", "service",
            "--nats-service-password-file", str(users.password_file("service")),
            "--nats-eraser-user", "eraser",
            "--nats-eraser-password-file", str(users.password_file("eraser")),
        ]  # fmt: skip
        return login(users, role) + (service if role == "frontend" else [])

    async with RoleStack(tmp_path, nats=users.server(), config=admin, role_flags=flags) as running:
        yield running


def login(users: NatsUsers, user: str) -> list[str]:
    return ["--nats-user", user, "--nats-password-file", str(users.password_file(user))]


async def whole(url: str, key: str, **fields: Any) -> httpx.Response:
    body = completion_body(**{"stream": False, **fields})
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(
            f"{url}/v1/completions", json=body, headers={"Idempotency-Key": key}
        )


async def forked(url: str, source: httpx.Response) -> str:
    """The source again, behind its first tokens."""
    body = {"at": 5, "sampling": {"seed": "source"}}
    path = f"{url}/v1/streams/{source.headers['x-request-id']}/fork"
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(path, json=body)
    return str(answer.json()["choices"][0]["text"])


async def num_billed(stack: RoleStack, prefix: str) -> int:
    scan = stack.cluster.js.direct_scan(f"{prefix}_BILLS", f"{prefix}.bill.*")
    return sum([len(decode_bills(message.data).bills) async for message in scan])


async def keep_asking(urls: list[str], over: asyncio.Event, told: list[Stream]) -> None:
    """One stream after the other, all alike."""
    while not over.is_set():
        told += [await run_stream(url, seed=99, max_tokens=20) for url in urls]


async def test_a_service_moves_while_streams_run(stack: RoleStack, users: NatsUsers) -> None:
    as_admin = login(users, "admin")
    other = stack.start_frontend()
    for _ in range(2):
        stack.start_worker(*SCRIPTED, "--max-running", "2")
    await stack.wait_ready(2)
    urls = [stack.url(), stack.url(other)]
    expected = await asyncio.gather(
        *(run_stream(urls[0], seed=i, max_tokens=NUM_TOKENS) for i in range(NUM_STREAMS))
    )
    small = await run_stream(urls[0], seed=99, max_tokens=20)
    keyed = await whole(urls[0], "before", seed=1, max_tokens=20, store=True)
    over, told = asyncio.Event(), list[Stream]()
    asking = asyncio.create_task(keep_asking(urls, over, told))

    # Killed before it has closed anything: all goes on, and it is run again.
    first = await start_migrate(stack.nats.url, *as_admin, "--num-partitions", "2")
    await eventually_async(lambda: is_announced(stack))
    first.kill()
    await first.wait()

    streams = [Stream() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(
            stream.post(
                urls[i % 2],
                completion_body(seed=i, max_tokens=NUM_TOKENS),
                **{"X-Resume-Grace": "60"},
            )
        )
        for i, stream in enumerate(streams)
    ]
    await streams[0].wait_for_tokens(10)
    tasks[0].cancel()  # its client comes back when the service has moved
    returned, said = await migrate(stack.nats.url, *as_admin, "--num-partitions", "2")
    assert returned == 0, said
    assert await stack.num_queued() == 0

    await asyncio.gather(*tasks[1:])
    await streams[0].resume(urls[1])
    num_emitted = len(told)
    await eventually(lambda: len(told) >= num_emitted + 4, 30)  # workers have gone over
    over.set()
    await asyncio.gather(asking)
    assert [stream.text for stream in streams] == [stream.text for stream in expected]
    assert all(stream.is_done and stream.error is None for stream in streams)
    assert {stream.text for stream in told} == {small.text}

    for url in urls:
        again = await whole(url, "before", seed=1, max_tokens=20, store=True)
        assert again.json()["id"] == keyed.json()["id"]
        assert await forked(url, keyed) == keyed.json()["choices"][0]["text"]
    after = await whole(urls[0], "after", seed=1, max_tokens=20)
    assert (await whole(urls[1], "after", seed=1, max_tokens=20)).json() == after.json()

    async def all_are_there() -> bool:
        return len(await workers_of(stack, NEW)) == 2

    await eventually_async(all_are_there, 30)
    assert not await workers_of(stack, "jf")
    late = stack.start_frontend("--prefix", NEW)
    await stack.wait_until(stack._frontends_answer)
    again = await whole(stack.url(late), "before", seed=1, max_tokens=20, store=True)
    assert again.json()["id"] == keyed.json()["id"]

    async def usage_is_of_both_sides() -> bool:
        billed = [await num_billed(stack, prefix) for prefix in ("jf", NEW)]
        assert min(billed) > 0
        async with httpx.AsyncClient(timeout=60) as client:
            told = [await client.get(f"{stack.url(each)}/v1/usage?by=") for each in (late, other)]
        return {each.json()["data"][0]["num_requests"] for each in told} == {sum(billed)}

    await eventually_async(usage_is_of_both_sides, 10)
    refused = [role.name for role in stack.roles if "permissions violation" in role.log.lower()]
    assert not refused
    returned, said = await migrate(stack.nats.url, *as_admin, "--delete-old")
    assert returned != 0
    assert "results" in said


@pytest.mark.nightly
async def test_the_last_worker_of_the_old_side_dies_and_another_comes_back(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        busy = stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        expected = await run_stream(stack.url(), seed=1, max_tokens=NUM_LONG_TOKENS)
        stream = Stream()
        running = asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=1, max_tokens=NUM_LONG_TOKENS))
        )
        await stream.wait_for_tokens(10)
        stack.start_worker(*SCRIPTED)  # finds nothing to do on the old side
        await stack.wait_ready(2)
        returned, said = await migrate(stack.nats.url, "--no-wait")
        assert returned == 0, said

        async def has_one() -> bool:
            return await num_ready(stack, NEW) == 1

        await eventually_async(has_one, 30)
        busy.kill()
        assert not stream.is_done
        async with asyncio.timeout(60):
            await running
        assert stream.is_done
        assert stream.text == expected.text
        await eventually_async(has_one, 30)  # and goes over again
        again = await run_stream(stack.url(), seed=1, max_tokens=NUM_LONG_TOKENS)
        assert again.text == expected.text
