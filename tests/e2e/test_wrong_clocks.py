"""Hosts whose clocks are minutes off: no deadline comes early, no key runs twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleProcess, RoleStack
from tests.eventually import eventually_async
from tests.frontend.sse import events_after, sse_events, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

AHEAD_S = 300.0
BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "prompt": "Once upon a time",
    "max_tokens": 200,
    "ignore_eos": True,
    "seed": 7,
}
DEADLINE = {"X-Request-Timeout": "30"}


# By day a deadline goes from a clock that is behind to one that is ahead: it might come early.
@pytest.mark.parametrize(
    "worker_ahead_s", [-AHEAD_S, pytest.param(AHEAD_S, marks=pytest.mark.nightly)]
)
async def test_a_key_runs_once_and_a_stream_moves_where_clocks_disagree(
    tmp_path: Path, worker_ahead_s: float
) -> None:
    async with RoleStack(tmp_path) as stack:
        stack.clock_ahead_s = -worker_ahead_s
        other = stack.start_frontend()
        stack.clock_ahead_s = worker_ahead_s
        doomed = stack.start_frontend()
        await stack.wait_ready(0)
        first = await check_a_key(stack, doomed, other)
        await check_a_stream(stack, doomed, other, first)


async def check_a_key(stack: RoleStack, one: RoleProcess, other: RoleProcess) -> RoleProcess:
    """While no worker is there, and each frontend believes that the other asked long ago; returns
    the worker that comes then.
    """
    urls = [f"{stack.url(role)}/v1/completions" for role in (one, other, one, other)]
    headers = {**DEADLINE, "Idempotency-Key": "tale-2"}
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        waiting = [asyncio.create_task(client.post(url, json=BODY)) for url in urls]
        await eventually_async(stack.num_queued)
        worker = stack.start_worker(*SCRIPTED)
        answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 1
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    return worker


async def check_a_stream(
    stack: RoleStack, doomed: RoleProcess, other: RoleProcess, first: RoleProcess
) -> None:
    """Resumed at a frontend, and by a worker, whose clocks are ten minutes from the others'."""
    async with httpx.AsyncClient(timeout=60, headers=DEADLINE) as client:
        async with client.stream(
            "POST", f"{stack.url(doomed)}/v1/completions", json={**BODY, "stream": True}
        ) as response:
            assert response.status_code == 200
            events = sse_events(response)
            seen = [await anext(events) for _ in range(10)]
            stack.clock_ahead_s = -stack.clock_ahead_s
            stack.start_worker(*SCRIPTED)
            await stack.wait_ready(2)
            doomed.kill()
            first.kill()
        rest = await events_after(client, stack.url(other), seen[-1])
        whole = await client.post(f"{stack.url(other)}/v1/completions", json=BODY)
    assert whole.json()["choices"][0]["finish_reason"] == "length"
    assert text_of([*seen, *rest]) == whole.json()["choices"][0]["text"]
