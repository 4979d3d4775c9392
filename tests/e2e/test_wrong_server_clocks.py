"""One of three nats-servers has a clock that is minutes off, and leads now and then: no deadline
comes early, no key runs twice, and nothing is refused that should run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.config import ClusterConfig
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.frontend.sse import events_after, sse_events, text_of
from tests.nats_cluster import BINARY, NatsCluster
from tests.stream_leaders import make_lead
from tests.wrong_clock import server_with_wrong_clock

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]

AHEAD_S = 300
WRONG, RIGHT = "n1", "n2"
BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "prompt": "Once upon a time",
    "max_tokens": 200,
    "ignore_eos": True,
    "seed": 7,
}
DEADLINE = {"X-Request-Timeout": "60"}


@asynccontextmanager
async def stack_of_wrong_clock(folder: Path, ahead_s: int) -> AsyncIterator[RoleStack]:
    nats = NatsCluster(folder / "nats")
    wrong = nats.named(WRONG)
    wrong.binary = server_with_wrong_clock(BINARY, ahead_s, folder / "nats-server")
    config = ClusterConfig(replicas=3)
    async with RoleStack(folder, "--replicas", "3", nats=nats, config=config) as stack:
        yield stack


async def lead_all(stack: RoleStack, server: str) -> None:
    """All streams: requests, ownership and tokens, keys, results, heartbeats, leases."""
    names = (await stack.cluster.js.api("STREAM.NAMES"))["streams"]
    await asyncio.gather(*(make_lead(stack.cluster.js, name, server) for name in names))


@pytest.mark.parametrize("ahead_s", [AHEAD_S, -AHEAD_S])
@pytest.mark.parametrize("first", [WRONG, RIGHT])
async def test_a_leader_whose_clock_is_wrong(tmp_path: Path, first: str, ahead_s: int) -> None:
    """It leads when requests are stored, or when they are read: queued, run, moved, resumed."""
    second = RIGHT if first == WRONG else WRONG
    async with stack_of_wrong_clock(tmp_path, ahead_s) as stack:
        doomed, other = stack.roles[0], stack.start_frontend()
        await stack.wait_ready(0)
        await lead_all(stack, first)
        keyed = {**DEADLINE, "Idempotency-Key": "tale-2"}
        async with httpx.AsyncClient(timeout=120, headers=DEADLINE) as client:
            url, other_url = (f"{stack.url(role)}/v1/completions" for role in (doomed, other))
            waiting = [asyncio.create_task(client.post(other_url, json=BODY, headers=keyed))]
            streamed = asyncio.create_task(first_events(client, url))
            await stack.until_queued(2)
            await lead_all(stack, second)
            waiting.append(asyncio.create_task(client.post(other_url, json=BODY, headers=keyed)))
            worker = stack.start_worker(*SCRIPTED)
            seen = await streamed
            await lead_all(stack, first)
            doomed.kill()
            worker.kill()
            stack.start_worker(*SCRIPTED)
            rest = await events_after(client, stack.url(other), seen[-1])
            answers = await asyncio.gather(*waiting)
            await lead_all(stack, second)
            answers.append(await client.post(other_url, json=BODY, headers=keyed))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.headers["x-request-id"] for answer in answers}) == 1
        (text,) = {answer.json()["choices"][0]["text"] for answer in answers}
        assert answers[0].json()["choices"][0]["finish_reason"] == "length"
        assert text_of([*seen, *rest]) == text


async def first_events(client: httpx.AsyncClient, url: str) -> list[Any]:
    """Of a stream that is left after them; its client goes on elsewhere."""
    async with client.stream(
        "POST", url, json={**BODY, "stream": True}, headers={"X-Resume-Grace": "30"}
    ) as response:
        assert response.status_code == 200
        events = sse_events(response)
        return [await anext(events) for _ in range(20)]
