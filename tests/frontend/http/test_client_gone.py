"""Stop means stop: whoever leaves, aborts or runs out of time ends the request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.inference.test_accept import ends_of
from tests.frontend.sse import sse_events
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_closed_stream_is_cancelled_within_a_second(stack: Stack) -> None:
    stack.say("a", "b", delay_s=0.05, never_finish=True)
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            rid = response.headers["x-request-id"]
            await anext(sse_events(response))
        await assert_ended(stack, rid, FinishReason.CANCEL, within_s=1.0, by=running)


async def test_a_closed_connection_without_stream_is_cancelled_too(stack: Stack) -> None:
    stack.say("a", never_finish=True)
    running = await stack.start_frontend()
    async with running.client() as client:
        task = asyncio.create_task(client.post(CHAT, json=BODY))
        rid = await first_rid(stack)
        task.cancel()
        await assert_ended(stack, rid, FinishReason.CANCEL, within_s=1.0, by=running)


async def test_a_request_in_the_queue_is_cancelled_too(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            rid = response.headers["x-request-id"]
            await stack.until_queued(1)
        await assert_ended(stack, rid, FinishReason.CANCEL, within_s=1.0, by=running)
        await stack.until_queued(0)  # nobody counts it as waiting, no worker is started for it


async def test_grace_lets_it_run_on(stack: Stack) -> None:
    stack.say("a", "b", delay_s=0.05, never_finish=True)
    running = await stack.start_frontend(max_resume_grace_s=1.5)
    async with running.client(headers={"X-Resume-Grace": "60"}) as client:
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            rid = response.headers["x-request-id"]
        await time_to_err(1.0)
        assert await stack.cluster.ownership.last(rid) is None
        await assert_ended(stack, rid, FinishReason.CANCEL, within_s=1.5, by=running)


async def test_grace_holds_for_who_comes_back_without_the_header(stack: Stack) -> None:
    """As a browser's EventSource does. Who gives it again, says how long from then on."""
    stack.say("a", "b", delay_s=0.05, never_finish=True)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    headers = {"X-Resume-Grace": "60"}
    async with first.client(headers=headers) as client, second.client() as other:
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            rid = response.headers["x-request-id"]
        async with other.stream("GET", f"/v1/streams/{rid}") as response:
            await anext(sse_events(response))
        await time_to_err(1.0)
        assert await stack.cluster.ownership.last(rid) is None
        async with other.stream(
            "GET", f"/v1/streams/{rid}", headers={"X-Resume-Grace": "0"}
        ) as response:
            await anext(sse_events(response))
        await assert_ended(stack, rid, FinishReason.CANCEL, within_s=1.0, by=second)


async def test_a_finished_request_is_not_ended_again(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.post(CHAT, json=BODY)
    await time_to_err(0.3)
    assert await stack.cluster.ownership.last(answer.headers["x-request-id"]) is None


async def test_deadline_in_the_queue_is_408(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client(headers={"X-Request-Timeout": "0.6"}) as client:
        task = asyncio.create_task(client.post(CHAT, json=BODY))
        await eventually_async(lambda: ends_of(stack))
        stack.backend.hold.set()  # the fake is the detokenizer too: it must see the end
        answer = await task
    assert answer.status_code == 408
    assert answer.json()["error"]["type"] == "timeout_error"
    (run,) = stack.backend.runs.values()
    assert run.request.deadline_s == 0.6


async def test_deadline_in_a_stream_is_an_error_event(stack: Stack) -> None:
    stack.say("a", "b", delay_s=0.05, never_finish=True)
    running = await stack.start_frontend()
    async with (
        running.client(headers={"x-stainless-read-timeout": "0.5"}) as client,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        events = [event async for event in sse_events(response)]
    assert events[-1].json["error"]["type"] == "timeout_error"


async def test_abort_ends_a_stream_on_any_frontend(stack: Stack) -> None:
    stack.say("a", "b", delay_s=0.05, never_finish=True)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with (
        first.client() as client,
        second.client() as other,
        client.stream("POST", CHAT, json={**BODY, "stream": True, "n": 2}) as response,
    ):
        rid = response.headers["x-request-id"]
        events = sse_events(response)
        [await anext(events) for _ in range(4)]
        aborted = await other.post("/abort_request", json={"rid": rid})
        assert aborted.json() == {"rid": rid, "num_aborted": 2}
        rest = [event async for event in events]
    assert rest[-1].json["error"]["code"] == "cancelled"


async def test_abort_of_a_queued_request(stack: Stack) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with (
        first.client() as client,
        second.client() as other,
        client.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        rid = response.headers["x-request-id"]
        aborted = await other.post("/abort_request", json={"rid": rid})
        assert aborted.json() == {"rid": rid, "num_aborted": 1}
    await assert_ended(stack, rid, FinishReason.CANCEL, within_s=0.5, by=second)


async def test_abort_of_an_unknown_request_is_404(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        for rid in ("0" * 32, "nonsense"):
            assert (await client.post("/abort_request", json={"rid": rid})).status_code == 404
        assert (await client.post("/abort_request", json={})).status_code == 400


async def test_a_dead_frontends_requests_are_ended(stack: Stack) -> None:
    stack.say("a", never_finish=True)
    survivor = await stack.start_frontend(orphan_wait_s=0.5)
    doomed = await stack.start_frontend(orphan_wait_s=0.5)
    async with doomed.client() as client, survivor.client() as other_client:
        task = asyncio.create_task(client.post(CHAT, json=BODY))
        orphan = await first_rid(stack)
        kept = asyncio.create_task(other_client.post(CHAT, json=BODY))
        await eventually(lambda: survivor.has_seen(doomed))
        doomed.task.cancel()  # no farewell: as kill -9, but for the heartbeat's deletion
        await assert_ended(stack, orphan, FinishReason.CANCEL, within_s=10.0, by=survivor)
        (other,) = [rid for rid in stack.backend.runs if rid != orphan]
        assert await stack.cluster.ownership.last(other) is None
        for request in (task, kept):
            request.cancel()
        await asyncio.gather(task, kept, return_exceptions=True)


async def first_rid(stack: Stack) -> str:
    await eventually(lambda: stack.backend.runs)
    return next(iter(stack.backend.runs))


async def assert_ended(
    stack: Stack, rid: str, reason: FinishReason, *, within_s: float, by: RunningFrontend
) -> None:
    """The ownership log has an `end`, and the workers were told."""
    last = await eventually_async(lambda: stack.cluster.ownership.last(rid), within_s)
    assert isinstance(last.record, End)
    assert last.record.reason is reason
    assert last.record.by == by.frontend_id
    assert last.record.reply is not None
    await eventually(lambda: rid in stack.backend.cancelled)
