"""The accept rule: what the queue has stored gets a 200, everything else an error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from shared.protocol.codec import decode_ownership
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from tests.eventually import Looks, eventually, eventually_async
from tests.frontend.conftest import Stack
from tests.frontend.sse import sse_events, text_of
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_full_queue_is_429_with_retry_after(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        waiting = [asyncio.create_task(client.post(CHAT, json=BODY)) for _ in range(8)]
        await stack.until_queued(8)
        refused = await client.post(CHAT, json=BODY)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) == 120  # nothing moves
        refusals = running.metrics.acceptance.refused.labels("queue_full", "interactive")
        assert refusals.value == 1
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}


async def test_the_retry_time_follows_the_queue(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        while not (rate := running.frontend.side.streams.queue_watch.drain).per_s:
            await client.post(CHAT, json=BODY)
        stack.backend.hold.clear()
        waiting = [asyncio.create_task(client.post(CHAT, json=BODY)) for _ in range(8)]
        await stack.until_queued(8)
        refused = await client.post(CHAT, json=BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) == rate.retry_after_s(1) < 120
        stack.backend.hold.set()
        await asyncio.gather(*waiting)


async def test_the_job_class_is_the_clients_choice(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        batch = {"X-Job-Class": "batch"}
        task = asyncio.create_task(client.post(CHAT, json=BODY, headers=batch))
        await stack.until_queued(1)
        subjects = stack.cluster.subjects
        message = await stack.cluster.js.get_last(
            subjects.requests_stream, subjects.requests(stack.card.pool, "batch")
        )
        assert message is not None
        stack.backend.hold.set()
        assert (await task).status_code == 200
        refused = await client.post(CHAT, json=BODY, headers={"X-Job-Class": "urgent"})
    assert refused.status_code == 400
    assert "'urgent'" in refused.json()["error"]["message"]


async def test_a_group_that_does_not_fit_leaves_nothing_running(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        refused = await client.post(CHAT, json={**BODY, "n": 12})
        assert refused.status_code == 429
        await time_to_err(0.5)
        stack.backend.hold.set()
        await stack.until_queued(0)
        ends = await ends_of(stack)
    assert {end.reason for end in ends} == {FinishReason.CANCEL}
    assert len(ends) >= 8
    assert {run.finish and run.finish.reason for run in stack.backend.runs.values()} <= {
        FinishReason.CANCEL
    }


async def test_503_while_nats_is_away_and_200_when_it_is_back(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        stack.server.kill()
        async for _ in Looks():
            if (await client.get("/ready")).status_code != 200:
                break
        began = time.monotonic()
        refused = await client.post(CHAT, json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "service_unavailable"
        assert time.monotonic() - began < 0.5
        assert (await client.get("/health")).status_code == 200
        await asyncio.to_thread(stack.server.start)
        answer = await eventually_200(client)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"


async def test_no_answer_from_the_queue_is_503_and_the_request_is_ended(stack: Stack) -> None:
    """A paused server takes the request when it wakes up: nobody waits for it then."""
    running = await stack.start_frontend()
    async with running.client() as client:
        await client.post(CHAT, json=BODY)
        await stack.until_queued(0)  # an ack that a paused server has not read is lost
        stack.backend.hold.clear()
        stack.server.pause()
        try:
            refused = await client.post(CHAT, json=BODY)
        finally:
            stack.server.resume()
        assert refused.status_code == 503
        # Stored or not by a server that slept: it is ended, and does not stay in the queue.
        (end,) = await eventually_async(lambda: ends_of(stack), 60)
        assert end.reason is FinishReason.CANCEL
        await stack.until_queued(0)


async def test_a_stream_survives_a_restart_of_nats(stack: Stack) -> None:
    stack.say(*[f"{i} " for i in range(30)], delay_s=0.1)
    running = await stack.start_frontend()
    async with (
        running.client() as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        events = sse_events(response)
        seen = [await anext(events) for _ in range(4)]
        stack.server.kill()
        await eventually(lambda: not stack.cluster.nc.is_connected)
        await asyncio.to_thread(stack.server.start)
        seen += [event async for event in events]
    assert text_of(seen) == "".join(f"{i} " for i in range(30))
    assert seen[-1].data == "[DONE]"


async def test_a_long_prompt_travels_by_the_object_store(stack: Stack) -> None:
    from tests.frontend.tiny_model import make_bundle, make_card, register

    bundle = make_bundle()
    card = make_card(bundle, "tiny", max_context_len=200_000)
    await register(stack.cluster, bundle, card)
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.post(
            "/v1/completions", json={"model": "tiny", "prompt": "x" * 70_000}
        )
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == 70_001
    (run,) = stack.backend.runs.values()
    assert run.request.prompt_ids == b""
    assert run.request.prompt_object == f"prompt-{run.request.rid}"
    await until_object_is_gone(stack, run.request.prompt_object)


async def ends_of(stack: Stack) -> list[End]:
    log, ownership = stack.cluster.subjects.tokens_stream, "jf.own.*.*"
    found = stack.cluster.js.direct_scan(log, ownership)
    records = [decode_ownership(message.data) async for message in found]
    return [record for record in records if isinstance(record, End)]


async def until_object_is_gone(stack: Stack, name: str) -> None:
    from nats.js.errors import NotFoundError

    store = await stack.cluster.nc.jetstream().object_store(stack.cluster.subjects.objects_bucket)
    async for _ in Looks(why=f"{name} is still there"):
        try:
            info = await store.get_info(name)
        except NotFoundError:
            return
        if info.deleted:
            return


async def eventually_200(client: httpx.AsyncClient) -> httpx.Response:
    async for _ in Looks(longest_pause_s=0.1):
        answer = await client.post(CHAT, json=BODY)
        if answer.status_code == 200:
            break
    return answer
