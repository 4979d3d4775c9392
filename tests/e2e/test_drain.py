"""Real processes that are asked to leave while they work: how long it takes, and what clients see.

The engine of the worker that leaves is inside a step that takes long, as in a long prefill: nothing
may wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 4
NUM_TOKENS = 75
SLOW_TOKEN = 77
LONG_STEP = ("--scripted-hang-token", str(SLOW_TOKEN), "--scripted-hang-s", "30")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path) as running:
        yield running


async def start_streams(stack: RoleStack) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    streams = [Stream() for _ in range(NUM_STREAMS)]
    bodies = [completion_body(seed=i, max_tokens=NUM_TOKENS) for i in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(stream.post(stack.url(), body))
        for stream, body in zip(streams, bodies, strict=True)
    ]
    for stream in streams:
        await stream.wait_for_tokens(10)
    return streams, tasks


async def expected_texts(stack: RoleStack) -> list[str]:
    undisturbed = await asyncio.gather(
        *(run_stream(stack.url(), seed=i, max_tokens=NUM_TOKENS) for i in range(NUM_STREAMS))
    )
    return [stream.text for stream in undisturbed]


async def start_long_prefill(stack: RoleStack) -> tuple[Stream, asyncio.Task[None]]:
    stream = Stream()
    body = completion_body(prompt=[300, SLOW_TOKEN], max_tokens=10)  # type: ignore[arg-type]
    return stream, asyncio.create_task(stream.post(stack.url(), body))


async def all_stand_still(streams: list[Stream]) -> None:
    async with asyncio.timeout(20.0):
        while any(await asyncio.gather(*(stream.moves(0.2) for stream in streams))):
            pass


async def test_a_worker_leaves_in_time_in_the_middle_of_a_long_step(stack: RoleStack) -> None:
    first = stack.start_worker(*SCRIPTED, *LONG_STEP)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    streams, tasks = await start_streams(stack)
    slow, slow_task = await start_long_prefill(stack)
    await all_stand_still([*streams, slow])
    positions = [stream.position for stream in streams]
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    leaving_at = asyncio.get_running_loop().time()
    seconds = await asyncio.to_thread(first.stop)
    for stream, position in zip([slow, *streams], [0, *positions], strict=True):
        await stream.wait_for_tokens(position + 1)
    gap_s = asyncio.get_running_loop().time() - leaving_at
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, slow_task)
    assert seconds < 2.0
    assert gap_s < seconds + 1.0
    assert first.process.returncode == 0
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in [slow, *streams])


async def leave(role: RoleProcess) -> float:
    return await asyncio.to_thread(role.stop, 30.0)


async def test_a_worker_that_may_finish_first_does(stack: RoleStack) -> None:
    first = stack.start_worker(*SCRIPTED, "--shutdown-timeout-s", "60")
    await stack.wait_ready(1)
    streams, tasks = await start_streams(stack)
    await leave(first)
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)  # nobody else is there
    assert all(stream.is_done and stream.error is None for stream in streams)
    assert '"handing_over"' in first.log
    assert first.process.returncode == 0


@pytest.mark.parametrize("num_signals", [1, 2])
async def test_a_frontend_leaves_in_time_and_its_streams_resume(
    stack: RoleStack, num_signals: int
) -> None:
    stack.start_worker(*SCRIPTED)
    leaving = stack.start_frontend("--shutdown-timeout-s", "0" if num_signals == 1 else "60")
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    url = stack.url(leaving)
    streams = [Stream() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(stream.post(url, completion_body(seed=i, max_tokens=NUM_TOKENS)))
        for i, stream in enumerate(streams)
    ]
    async with httpx.AsyncClient() as idle:  # its connection stays open
        assert (await idle.get(f"{url}/health/live")).status_code == 200
        for stream in streams:
            await stream.wait_for_tokens(10)
        if num_signals == 2:
            leaving.process.terminate()
            assert all(await asyncio.gather(*(stream.moves() for stream in streams)))
        seconds = await leave(leaving)
    await asyncio.gather(*tasks)
    assert leaving.process.returncode == 0
    assert seconds < 5.0
    assert not any(stream.is_done for stream in streams)
    await asyncio.gather(*(stream.resume(stack.url()) for stream in streams))
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in streams)
