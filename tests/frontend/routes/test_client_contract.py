"""Rows of docs/client-contract.md that no other test shows: what an SDK does with our answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI

from shared.protocol.finish import Finish, FinishReason
from tests.eventually import eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.http_proxy import HttpProxy, ProxyRules

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TEXT = "Hello, world!"


@asynccontextmanager
async def counted_client(running: RunningFrontend) -> AsyncIterator[tuple[AsyncOpenAI, HttpProxy]]:
    """OpenAI's client as it comes, with its two repetitions, and who counts its requests."""
    async with (
        HttpProxy(running.frontend.process.port, ProxyRules()) as counter,
        AsyncOpenAI(base_url=f"{counter.url}/v1", api_key="none", timeout=60) as client,
    ):
        yield client, counter


@pytest.mark.parametrize(
    "reason",
    [
        FinishReason.QUEUE_TIMEOUT,
        FinishReason.ERROR,
        FinishReason.WEIGHTS_REPLACED,
        FinishReason.UNSERVED,
    ],
)
async def test_what_is_over_may_be_sent_again_without_a_key(
    stack: Stack, reason: FinishReason
) -> None:
    """The first request has left the queue before its client hears of it."""
    scripts = [Script(["Hel"], Finish(reason)), Script([TEXT])]
    stack.answer(lambda request: scripts.pop(0))
    running = await stack.start_frontend()
    async with counted_client(running) as (client, counter):
        answer = await client.completions.create(model="tiny", prompt="Hi")
        assert counter.num_requests == len(stack.backend.runs) == 2
    assert answer.choices[0].text == TEXT
    assert [run.finish.reason for run in stack.backend.runs.values() if run.finish] == [
        reason,
        FinishReason.STOP,
    ]
    await stack.until_queued(0)
    assert stack.backend.num_served == 2


async def test_poison_is_sent_once(stack: Stack) -> None:
    stack.say("Hel", finish=Finish(FinishReason.POISON))
    running = await stack.start_frontend()
    async with counted_client(running) as (client, counter):
        with pytest.raises(openai.InternalServerError) as caught:
            await client.completions.create(model="tiny", prompt="Hi")
        assert counter.num_requests == len(stack.backend.runs) == 1
    assert caught.value.code == "poison"


async def test_conflicts_are_sent_once(stack: Stack) -> None:
    running = await stack.start_frontend()
    key = {"Idempotency-Key": "order-7"}
    async with counted_client(running) as (client, counter):
        first = await client.completions.create(model="tiny", prompt="Hi", extra_headers=key)
        with pytest.raises(openai.ConflictError) as reused:
            await client.completions.create(model="tiny", prompt="Ho", extra_headers=key)
        assert reused.value.code == "idempotency_key_reused"
        assert counter.num_requests == 2
        event_id = f"{first._request_id}.3.13.00000000"
        with pytest.raises(openai.ConflictError) as mismatched:
            await client.get(
                f"/streams/{first._request_id}",
                cast_to=object,
                options={"headers": {"Last-Event-ID": event_id}},
            )
        assert mismatched.value.code == "resume_mismatch"
        assert counter.num_requests == 3


async def test_who_is_refused_comes_back_when_it_was_told(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as others, counted_client(running) as (client, counter):
        while not running.frontend.side.streams.queue_watch.drain.per_s:
            await others.post(CHAT, json=BODY)
        num_before = len(stack.backend.runs)
        stack.backend.hold.clear()
        waiting = [asyncio.create_task(others.post(CHAT, json=BODY)) for _ in range(8)]
        await stack.until_queued(8)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        asking = asyncio.create_task(client.completions.create(model="tiny", prompt="Hi"))
        refused = running.metrics.acceptance.refused.labels("queue_full", "interactive")
        await eventually(lambda: refused.value)
        stack.backend.hold.set()
        answer = await asking
        assert loop.time() - began_at >= 1.0, "the least that Retry-After says"
        assert counter.num_requests == 2
        assert {(await task).status_code for task in waiting} == {200}
    assert answer.choices[0].text == TEXT
    assert len(stack.backend.runs) == num_before + 9
