"""Prompts are computed by one worker and gone on with by others, while one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.role_stack import REAL_ENGINE, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.e2e.test_faults import assert_queue_empty, holder_of
from tests.worker.io_stage import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_TOKENS = 120
PROMPTS = [f"Tale {number}. " + "A fox met a bear by the river. " * 30 for number in range(4)]


class Roles:
    """A worker for prompts, and two that decode."""

    def __init__(self, stack: RoleStack, folder: Path) -> None:
        flags = (*REAL_ENGINE, "--kv-disk-dir", str(folder / "kv"))
        self.stack = stack
        self.first = stack.start_worker(*flags, "--role", "prefill")
        self.others = [stack.start_worker(*flags, "--role", "decode") for _ in range(2)]

    async def run_all(self) -> list[str]:
        streams = await asyncio.gather(
            *(run_stream(self.stack.url(), prompt=each, max_tokens=NUM_TOKENS) for each in PROMPTS)
        )
        return [stream.text for stream in streams]


@pytest.fixture
async def roles(tmp_path: Path) -> AsyncIterator[Roles]:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        roles = Roles(stack, tmp_path)
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
    assert await roles.run_all() == expected
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
    await assert_queue_empty(stack)


async def moved(roles: Roles, stream: Stream) -> None:
    """It has got to a worker that decodes."""
    await stream.wait_for_tokens(1)

    async def has_moved() -> bool:
        return await holder_of(roles.stack, stream) in roles.others

    await eventually_async(has_moved)
