"""Prompts that kill the engine, and the whole worker, beside innocent streams on real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, LocalStack
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.forked_program import run_program

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

NUM_STREAMS = 4
ENGINE_POISON, WORKER_POISON = 77, 78


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
    done = run_program("jetflock", "dead", *argv, "--nats-url", stack.nats_url)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def post_poison(stack: LocalStack, token_id: int) -> httpx.Response:
    body = completion_body(prompt=[300, token_id, 301], max_tokens=5, stream=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(timeout=90) as client:
        return await client.post(f"{url(stack)}/v1/completions", json=body)


async def test_poison_ends_and_its_neighbours_do_not_notice(stack: LocalStack) -> None:
    """Two workers, two kinds of poison at once: suspects meet, and crashes have two culprits."""
    streams = [Stream() for _ in range(NUM_STREAMS)]
    innocent = [
        asyncio.create_task(stream.post(url(stack), completion_body(seed=seed, max_tokens=200)))
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(10)
    responses = await asyncio.gather(
        post_poison(stack, ENGINE_POISON), post_poison(stack, WORKER_POISON)
    )
    async with asyncio.timeout(60):
        await asyncio.gather(*innocent)
    undisturbed = await asyncio.gather(
        *(run_stream(url(stack), seed=seed, max_tokens=200) for seed in range(NUM_STREAMS))
    )
    assert [stream.text for stream in streams] == [stream.text for stream in undisturbed]
    assert all(stream.is_done and stream.error is None for stream in streams)

    listed = json.loads(dead(stack, "list", "--json"))
    assert len(listed) == 2
    for response, kills_engine_only in zip(responses, (True, False), strict=True):
        assert response.status_code == 500
        error = response.json()["error"]
        assert error["code"] == "poison"
        [rid] = [one["rid"] for one in listed if one["rid"] in error["message"]]
        crashes = json.loads(dead(stack, "show", rid, "--json"))["crashes"]
        assert [crash["was_alone"] for crash in crashes[-2:]] == [False, True]
        assert crashes[-1]["engine_only"] is kills_engine_only
        assert 3 <= len(crashes) <= 5, "beside the other one it may have died once more"

    old, new = dead(stack, "requeue", listed[0]["rid"]).split()
    assert old == listed[0]["rid"]
    again = await read_stream(stack, new)
    assert '"poison"' in again, "it is as poisonous as before, and told so under its new id"
    assert new in [one["rid"] for one in json.loads(dead(stack, "list", "--json"))]
    dead(stack, "drop", new, listed[1]["rid"])
    assert dead(stack, "list") == ""


async def read_stream(stack: LocalStack, rid: str) -> str:
    """All events of a resumed stream."""
    async with (
        httpx.AsyncClient(timeout=90) as client,
        client.stream("GET", f"{url(stack)}/v1/streams/{rid}") as response,
    ):
        await response.aread()
        return response.text
