"""Engine processes that hang: stopped from outside, and by a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, LocalStack, any_alive
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 4
NUM_TOKENS = 100
HANG_TOKEN = 77
HANG_S = 2.0
EXIT_HUNG = 70


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    async with RoleStack(tmp_path, "--ack-wait-s", "30") as running:
        yield running


async def run_streams(url: str, streams: list[Stream]) -> list[asyncio.Task[None]]:
    bodies = [completion_body(seed=i, max_tokens=NUM_TOKENS) for i in range(len(streams))]
    return [
        asyncio.create_task(stream.post(url, body))
        for stream, body in zip(streams, bodies, strict=True)
    ]


async def expected_texts(url: str) -> list[str]:
    undisturbed = await asyncio.gather(
        *(run_stream(url, seed=i, max_tokens=NUM_TOKENS) for i in range(NUM_STREAMS))
    )
    return [stream.text for stream in undisturbed]


async def test_a_stopped_engine_process_is_left_and_its_streams_go_on(stack: RoleStack) -> None:
    first = stack.start_worker(*SCRIPTED, "--hang-timeout-s", str(HANG_S))
    await stack.wait_ready(1)
    expected = await expected_texts(stack.url())
    streams = [Stream() for _ in range(NUM_STREAMS)]
    tasks = await run_streams(stack.url(), streams)
    for stream in streams:
        await stream.wait_for_tokens(15)
    engine = first.engine()
    engine.suspend()
    stack.start_worker(*SCRIPTED)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in streams)
    await stack.wait_until(lambda: not first.is_alive)
    assert first.process.returncode == EXIT_HUNG
    assert not any_alive([engine])
    assert "engine_hangs" in first.log


@pytest.mark.slow
async def test_a_request_that_hangs_engines_is_poison(tmp_path: Path) -> None:
    stack = LocalStack(
        tmp_path,
        "--model-name", MODEL_NAME, "--workers", "2", "--log-format", "json", *SCRIPTED,
        "--scripted-hang-token", str(HANG_TOKEN), "--hang-timeout-s", str(HANG_S),
        program=REAL_ROLES,
    )  # fmt: skip
    try:
        await asyncio.to_thread(stack.start().wait_ready)
        url = f"http://127.0.0.1:{stack.port}"
        expected = await expected_texts(url)
        streams = [Stream() for _ in range(NUM_STREAMS)]
        tasks = await run_streams(url, streams)
        for stream in streams:
            await stream.wait_for_tokens(10)
        body = completion_body(prompt=[300, HANG_TOKEN], max_tokens=5, stream=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(timeout=120) as client:
            response = await client.post(f"{url}/v1/completions", json=body)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "poison"
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert [stream.text for stream in streams] == expected
        assert all(stream.is_done and stream.error is None for stream in streams)
        assert f"ended with status {EXIT_HUNG}" in stack.out + stack.err
    finally:
        stack.kill()
