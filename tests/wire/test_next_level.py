"""A build that knows one feature level more beside today's: who may write what, and who leaves."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.protocol.codec import unpack_map
from shared.protocol.request import FEATURE_LEVEL
from tests.e2e.role_stack import REPOSITORY, RoleProcess
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import eventually, eventually_async
from tests.wire.builds import NEXT_LEVEL, make_next
from tests.wire.mixed_stack import MixedStack

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(180),
]

NOW, NEXT = "today", "next"
NUM_TOKENS = 75
NUM_STREAMS = 4
CONFIG_ERROR = 2


@pytest.fixture
def next_build(tmp_path: Path) -> Path:
    return make_next(tmp_path / NEXT)


@pytest.fixture
async def mixed(tmp_path: Path, next_build: Path) -> AsyncIterator[MixedStack]:
    mixed = MixedStack(tmp_path / "stack", {NOW: REPOSITORY, NEXT: next_build}, NOW)
    async with mixed.stack:
        await mixed.hold_level(1)
        yield mixed


async def order_level(mixed: MixedStack, build: Path, *argv: str) -> tuple[int, str]:
    """`jetflock admin level` of that build; its status, and what it says."""
    done = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-m", "jetflock", "admin", "level", *argv),
            *("--nats-url", mixed.stack.nats.url),
        ],
        cwd=build,
        env=os.environ | {"PYTHONPATH": str(build)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


async def levels_of(mixed: MixedStack, stream: Stream) -> set[int]:
    """That the ownership records of a request are stamped with; 1 is not written."""
    cluster = mixed.stack.cluster
    subject = cluster.subjects.ownership(stream.rid)
    scan = cluster.js.direct_scan(cluster.subjects.tokens_stream, subject)
    return {unpack_map(message.data).get("level", 1) async for message in scan}


async def until_left(role: RoleProcess) -> None:
    """By itself."""
    await eventually(lambda: not role.is_alive, 40.0)
    assert role.process.returncode == CONFIG_ERROR, role.log[-2000:]
    assert f"is at feature level {NEXT_LEVEL}, this build knows {FEATURE_LEVEL}" in role.log


async def test_the_level_rises_behind_the_last_of_todays_roles(
    mixed: MixedStack, next_build: Path
) -> None:
    now = mixed.first()
    await mixed.stack.wait_ready(1)
    urls = [mixed.stack.url(now.frontend)]
    expected = [
        stream.text
        for stream in await asyncio.gather(
            *(run_stream(urls[0], seed=seed, max_tokens=NUM_TOKENS) for seed in range(NUM_STREAMS))
        )
    ]
    following = mixed.start(NEXT)
    await mixed.until_shared(NOW, NEXT)
    urls.append(mixed.stack.url(following.frontend))

    streams = [Stream() for _ in range(NUM_STREAMS)]
    reading = [
        asyncio.create_task(stream.post(urls[1], completion_body(seed=seed, max_tokens=NUM_TOKENS)))
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(10)
    status, words = await order_level(mixed, next_build, "--to", str(NEXT_LEVEL))
    assert status == CONFIG_ERROR
    assert f"{NOW}-worker-" in words
    # Today's roles are stopped, so that their cards expire: what they had goes on at the others.
    behind = (now.worker, now.detok, now.frontend)
    for role in behind:
        role.freeze()
    async with asyncio.timeout(60):
        await asyncio.gather(*reading)
    assert [stream.text for stream in streams] == expected
    assert [await levels_of(mixed, stream) for stream in streams] == [{1}] * NUM_STREAMS

    async def is_raised() -> bool:
        status, _ = await order_level(mixed, next_build, "--to", str(NEXT_LEVEL))
        return status == 0

    await eventually_async(is_raised, 40.0)
    status, words = await order_level(mixed, next_build, "--json")
    assert json.loads(words)["level"] == NEXT_LEVEL
    for role in behind:
        role.thaw()
    for role in behind:
        await until_left(role)

    async def is_stamped() -> bool:
        stream = await run_stream(urls[1], seed=0, max_tokens=NUM_TOKENS)
        assert stream.text == expected[0]
        return await levels_of(mixed, stream) == {NEXT_LEVEL}

    await eventually_async(is_stamped, 30.0)
    await until_left(mixed.start_frontend(NOW))
    status, words = await order_level(mixed, REPOSITORY)
    assert status == CONFIG_ERROR
    assert f"is at feature level {NEXT_LEVEL}" in words
