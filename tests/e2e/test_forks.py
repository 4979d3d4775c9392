"""Forks of running and finished streams, with kill -9 amid them: the first tokens are the source's,
the others those that the fork's seed makes there.

A token of the scripted engine depends on prompt, seed and position alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import IdStream, http_client
from tests.e2e.test_faults import holder_of

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(120)]

NUM_TOKENS = 160
AT = 50
SEEDS = (2, 3, 4)


class ForkStream(IdStream):
    """A stream that begins with the tokens of another."""

    async def fork(self, url: str, source: str, **fields: Any) -> None:
        body, path = {"stream": True, **fields}, f"{url}/v1/streams/{source}/fork"
        async with http_client() as client, client.stream("POST", path, json=body) as response:
            await self.read(response)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    def flags(role: str) -> list[str]:
        return ["--keep-requests", "all"] if role == "frontend" else []

    async with RoleStack(tmp_path, "--ack-wait-s", "3", role_flags=flags) as running:
        yield running


async def test_forks_are_exact_over_kills(stack: RoleStack) -> None:
    for _ in range(2):
        stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    url = stack.url()
    expected = [ForkStream() for _ in range(5)]
    await asyncio.gather(*(each.post(url, seed, NUM_TOKENS) for seed, each in enumerate(expected)))
    ids = [each.ids for each in expected]

    def fork_of(seed: int, at: int = AT) -> list[int]:
        return ids[1][:at] + ids[seed][at:]

    source = ForkStream()
    forks = {seed: ForkStream() for seed in SEEDS}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source.post(url, 1, NUM_TOKENS))
        await source.wait_for_ids(AT)
        for seed, fork in forks.items():
            sampling = {"seed": seed}
            tasks.create_task(fork.fork(url, source.rid, at=AT, sampling=sampling))
        await forks[2].wait_for_ids(AT + 20)
        (await holder_of(stack, forks[2])).kill()
        await forks[2].wait_for_ids(AT + 40)
        next(role for role in stack.roles if role.name.startswith("detok")).kill()
        stack.start_detok()
    assert source.ids == ids[1]
    assert [fork.ids for fork in forks.values()] == [fork_of(seed) for seed in SEEDS]
    late = ForkStream()  # of what is over, and of a fork
    await late.fork(url, forks[2].rid, at=AT + 30, sampling={"seed": 4})
    assert late.ids == fork_of(2)[: AT + 30] + ids[4][AT + 30 :]
    await stack.until_queued(0)
