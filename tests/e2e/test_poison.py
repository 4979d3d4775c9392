"""Prompts that kill the engine, and the whole worker, beside innocent streams on real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, REPOSITORY, LocalStack
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED
from tests.e2e.streams import Stream, completion_body, run_stream

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

NUM_STREAMS = 8
ENGINE_POISON, WORKER_POISON = 77, 78
LONG = {"max_tokens": 2500}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    stack = LocalStack(
        tmp_path,
        "--model-name", MODEL_NAME, "--workers", "2", "--log-format", "json", *SCRIPTED,
        "--scripted-poison-token", str(ENGINE_POISON),
        "--scripted-worker-poison-token", str(WORKER_POISON),
        program=REAL_ROLES,
    )  # fmt: skip
    try:
        yield await asyncio.to_thread(stack.start().wait_ready)
    finally:
        stack.kill()


def url(stack: LocalStack) -> str:
    return f"http://127.0.0.1:{stack.port}"


def dead(stack: LocalStack, *argv: str) -> str:
    """What `jetflock dead` prints."""
    return subprocess.run(
        [sys.executable, "-m", "jetflock", "dead", *argv, "--nats-url", stack.nats_url],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout


async def post_poison(stack: LocalStack, token_id: int) -> httpx.Response:
    body = completion_body(prompt=[300, token_id, 301], max_tokens=5, stream=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(timeout=90) as client:
        return await client.post(f"{url(stack)}/v1/completions", json=body)


def num_logged(stack: LocalStack, event: str) -> int:
    return stack.err.count(f'"event": "{event}"') + stack.err.count(f'"event":"{event}"')


@pytest.mark.parametrize(
    ("token_id", "what_died"), [(ENGINE_POISON, "engine"), (WORKER_POISON, "worker")]
)
async def test_poison_ends_and_its_neighbours_do_not_notice(
    stack: LocalStack, token_id: int, what_died: str
) -> None:
    expected = [
        stream.text
        for stream in await asyncio.gather(
            *(run_stream(url(stack), seed=seed, max_tokens=600) for seed in range(NUM_STREAMS))
        )
    ]
    streams = [Stream() for _ in range(NUM_STREAMS)]
    innocent = [
        asyncio.create_task(stream.post(url(stack), completion_body(seed=seed, max_tokens=600)))
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(20)

    started = time.monotonic()
    response = await post_poison(stack, token_id)
    seconds = time.monotonic() - started
    assert response.status_code == 500
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == "poison"

    async with asyncio.timeout(90):
        await asyncio.gather(*innocent)
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in streams)

    [listed] = json.loads(dead(stack, "list", "--json"))
    assert listed["rid"] in error["message"]
    crashes = json.loads(dead(stack, "show", listed["rid"], "--json"))["crashes"]
    assert len(crashes) == 3
    assert [crash["was_alone"] for crash in crashes] == [False, False, True]
    assert {crash["engine_only"] for crash in crashes} == {what_died == "engine"}
    assert seconds < 60

    old, new = dead(stack, "requeue", listed["rid"]).split()
    assert old == listed["rid"]
    assert json.loads(dead(stack, "list", "--json")) == []
    again = await read_stream(stack, new)
    assert '"poison"' in again, "it is as poisonous as before, and told so under its new id"
    [listed] = json.loads(dead(stack, "list", "--json"))
    assert listed["rid"] == new
    dead(stack, "drop", new)
    assert dead(stack, "list") == ""


async def read_stream(stack: LocalStack, rid: str) -> str:
    """All events of a resumed stream."""
    async with (
        httpx.AsyncClient(timeout=90) as client,
        client.stream("GET", f"{url(stack)}/v1/streams/{rid}") as response,
    ):
        await response.aread()
        return response.text
