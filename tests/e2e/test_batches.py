"""Batches on real processes: frontends that are killed, and interactive requests beside them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleProcess, RoleStack
from tests.eventually import Looks
from tests.frontend.batch_calls import create, jsonl, line, rows, until

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_TOKENS = 15


def body(idx: int) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": f"Once upon a time, {idx} foxes",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "seed": idx,
    }


def openai_client(stack: RoleStack, frontend: RoleProcess) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{stack.url(frontend)}/v1", api_key="none", timeout=30)


async def complete(client: AsyncOpenAI, body: dict[str, Any]) -> str:
    answer = await client.completions.create(model="", prompt="", extra_body=body)
    return answer.choices[0].text


async def until_done(client: AsyncOpenAI, batch: Batch, num_lines: int) -> None:
    async for _ in Looks(60):
        if batch.request_counts is not None and batch.request_counts.completed >= num_lines:
            return
        batch = await client.batches.retrieve(batch.id)


async def until_it_answers(url: str) -> None:
    async with httpx.AsyncClient() as client:
        async for _ in Looks(60):
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{url}/ready")).status_code == 200:
                    return


async def num_results(stack: RoleStack) -> int:
    subjects = stack.cluster.subjects
    scan = stack.cluster.js.direct_scan(subjects.results_stream, subjects.done("*"))
    return len({message.subject async for message in scan})


async def test_no_line_is_lost_or_run_twice_when_every_frontend_is_killed(tmp_path: Path) -> None:
    num_lines = 24
    async with RoleStack(tmp_path) as stack:
        first, second = stack.roles[0], stack.start_frontend("--batch-max-in-flight", "4")
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        async with openai_client(stack, second) as client:
            batch = await create(client, jsonl(*(line(i, **body(i)) for i in range(num_lines))))
            await until_done(client, batch, 4)
        first.kill()
        second.kill()
        assert await num_results(stack) < num_lines
        third = stack.start_frontend("--batch-max-in-flight", "4")
        await until_it_answers(stack.url(third))
        async with openai_client(stack, third) as client:
            batch = await until(client, batch, "completed")
            results = await rows(client, batch.output_file_id)
            assert await num_results(stack) == num_lines
            expected = [await complete(client, body(i)) for i in range(3)]
    assert batch.error_file_id is None
    assert [row["custom_id"] for row in results] == [f"line-{i}" for i in range(num_lines)]
    answers = [row["response"]["body"] for row in results]
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {NUM_TOKENS}
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert texts[:3] == expected


async def test_interactive_requests_pass_a_batch(tmp_path: Path) -> None:
    """They wait for what a worker has begun, and for nothing that is queued."""
    num_slots, num_lines = 4, 60
    async with RoleStack(tmp_path) as stack:
        frontend = stack.start_frontend(
            "--batch-max-in-flight", "40", "--queue-max-interactive", "4"
        )
        stack.start_worker(*SCRIPTED, "--max-running", str(num_slots))
        await stack.wait_ready(1)
        async with openai_client(stack, frontend) as client:
            batch = await create(client, jsonl(*(line(i, **body(i)) for i in range(num_lines))))
            await until_done(client, batch, num_slots)
            for i in range(3):
                before = await num_results(stack)
                await complete(client, {**body(i), "max_tokens": 5})
                num_passed = await num_results(stack) - before - 1
                # Those that run, one more in each other slot, and the noise of a loaded machine.
                assert num_passed <= 5 * num_slots, i
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
            batch = await until(client, batch, "completed")
            assert len(await rows(client, batch.output_file_id)) == num_lines
