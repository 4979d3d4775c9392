"""Prompts are computed by one worker and gone on with by others, while one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.broker.kv_bucket import readable
from shared.protocol.role_cards import WorkerCard
from tests.e2e.role_stack import REAL_ENGINE, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.e2e.test_faults import holder_of
from tests.eventually import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_TOKENS = 60
PROMPTS = [f"Tale {number}. " + "A fox met a bear by the river. " * 30 for number in range(3)]


class Roles:
    """A worker for prompts, and two that decode, which meet in a folder or over TCP."""

    def __init__(self, stack: RoleStack, folder: Path, *, is_one_folder: bool) -> None:
        self.stack = stack
        ways: tuple[str, ...] = () if is_one_folder else ("--kv-transfer-bind", "127.0.0.1:0")

        def start(role: str, name: str) -> RoleProcess:
            place = folder / ("kv" if is_one_folder else name)
            disk = ("--kv-disk-dir", str(place), *ways)
            return stack.start_worker(*REAL_ENGINE, *disk, "--role", role)

        self.first = start("prefill", "first")
        self.others = [start("decode", f"other {number}") for number in range(2)]

    async def run_all(self) -> list[str]:
        streams = await asyncio.gather(
            *(run_stream(self.stack.url(), prompt=each, max_tokens=NUM_TOKENS) for each in PROMPTS)
        )
        return [stream.text for stream in streams]


@pytest.fixture(params=["tcp", pytest.param("one folder", marks=pytest.mark.nightly)])
async def roles(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Roles]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        roles = Roles(stack, tmp_path, is_one_folder=request.param == "one folder")
        await stack.wait_ready(3)
        yield roles


@pytest.mark.parametrize(
    "victim",
    [
        "prompts",
        pytest.param("decode", marks=pytest.mark.nightly),
        pytest.param("all that decode", marks=pytest.mark.nightly),
    ],
)
async def test_nothing_is_lost_or_told_twice(roles: Roles, victim: str) -> None:
    stack = roles.stack
    expected = await roles.run_all()

    async def has_moved_all() -> bool:
        assert await roles.run_all() == expected
        return await has_found(roles)  # pages of the other worker

    await eventually_async(has_moved_all)
    streams = [Stream() for _ in PROMPTS]
    running = [
        asyncio.create_task(
            stream.post(stack.url(), completion_body(prompt, max_tokens=NUM_TOKENS))
        )
        for stream, prompt in zip(streams, PROMPTS, strict=True)
    ]
    victims: list[RoleProcess] = [roles.first]
    if victim == "prompts":  # while its pages are read, and others of its prompts wait
        await streams[0].wait_for_tokens(1)
    else:
        await moved(roles, streams[0])
        victims = roles.others
        if victim == "decode":
            victims = [await holder_of(stack, streams[0])]
    for role in victims:
        role.kill()
    async with asyncio.timeout(90):
        await asyncio.gather(*running)
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in streams)
    assert await roles.run_all() == expected, "those that are left do all"
    await stack.until_queued(0)


async def has_found(roles: Roles) -> bool:
    """Whether a worker that decodes had not to compute all of a prompt."""
    cluster = roles.stack.cluster
    entries = await cluster.bucket(cluster.subjects.workers_bucket).entries()
    works = [card.work for card in readable(WorkerCard, entries) if card.role == "decode"]
    return any(work.num_prefix_hits for work in works)


async def moved(roles: Roles, stream: Stream) -> None:
    """It has got to a worker that decodes."""
    await stream.wait_for_tokens(1)

    async def has_moved() -> bool:
        return await holder_of(roles.stack, stream) in roles.others

    await eventually_async(has_moved)
