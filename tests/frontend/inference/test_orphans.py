"""A frontend's death before a deep queue: what its clients, and strangers, cost the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.errors import LimitReached
from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.request import GenerateRequest
from shared.subjects import choice_rid, new_rid
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.time_to_err import time_to_err
from tests.worker.io_stage import make_request

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}
NUM_OTHERS = 400  # in the queue before and behind


async def queue_others(stack: Stack, count: int = NUM_OTHERS) -> None:
    """Requests of a frontend that lives; they are of no model that is served here."""
    js, subjects = stack.cluster.js, stack.cluster.subjects
    name = subjects.requests_stream
    config = (await js.api(f"STREAM.INFO.{name}"))["config"]
    await js.api(f"STREAM.UPDATE.{name}", config | {"max_msgs": 10 * count})
    requests = [make_request() for _ in range(count)]
    await asyncio.gather(
        *(
            js.publish(subjects.request("p", "batch", "frontend-other", one.rid), encode(one))
            for one in requests
        )
    )


def num_heard(running: RunningFrontend) -> int:
    return running.frontend.side.streams.cluster.nc.stats["in_msgs"]


async def start_stream(running: RunningFrontend, **changes: Any) -> str:
    """The id of a stream whose client is gone with its frontend."""
    async with (
        running.client() as client,
        client.stream("POST", CHAT, json=BODY | changes) as response,
    ):
        assert response.status_code == 200
        await running.die()
        return str(response.headers["x-request-id"])


async def test_strangers_ids_cost_a_few_reads_and_leave_nothing(stack: Stack) -> None:
    running = await stack.start_frontend()
    await queue_others(stack)
    async with running.client() as client:
        before = num_heard(running)
        for _ in range(20):
            answer = await client.get(f"/v1/streams/{new_rid()}")
            assert answer.status_code == 404
        assert num_heard(running) - before < 20 * 8  # not the queue
    assert stack.backend.replays == []  # no detokenizer was asked
    attached = stack.cluster.bucket(stack.cluster.subjects.attached_bucket)
    assert [entry.key for entry in await attached.entries()] == [f"frontends.{running.frontend_id}"]


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_stream_is_found_in_a_deep_queue(stack: Stack, num_choices: int) -> None:
    stack.backend.hold.clear()
    doomed, survivor = await stack.start_frontend(), await stack.start_frontend()
    rid = await start_stream(doomed, n=num_choices)
    await queue_others(stack)
    stack.say("Hello")
    async with survivor.client() as client:
        before = num_heard(survivor)
        async with client.stream("GET", f"/v1/streams/{rid}") as response:
            assert response.status_code == 200
            assert num_heard(survivor) - before < 30 * num_choices
            stack.backend.hold.set()
            text = "".join([line async for line in response.aiter_lines()])
    assert text.count("Hello") == num_choices
    assert text.endswith("[DONE]")


async def test_a_sweep_reads_what_the_dead_one_was_concerned_with(stack: Stack) -> None:
    stack.backend.hold.clear()
    doomed = await stack.start_frontend(orphan_wait_s=0.5)
    rid = await start_stream(doomed, n=2)
    await queue_others(stack)
    survivor = await stack.start_frontend(orphan_wait_s=0.5)  # it saw nobody die
    before = num_heard(survivor)

    async def is_ended() -> bool:
        lasts = [await stack.cluster.ownership.last(each) for each in (rid, choice_rid(rid, 1))]
        return all(last is not None and isinstance(last.record, End) for last in lasts)

    await eventually_async(is_ended, 20)
    assert num_heard(survivor) - before < NUM_OTHERS
    attachments = survivor.frontend.side.inference.ends.attachments

    async def is_forgotten() -> bool:
        return await attachments.frontends() == [survivor.frontend_id]

    await eventually_async(is_forgotten)


async def test_what_a_frontend_joined_is_swept_after_its_death_too(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("Hello", " there", gate=gate)
    first = await stack.start_frontend(orphan_wait_s=0.5)
    second = await stack.start_frontend(orphan_wait_s=0.5)
    third = await stack.start_frontend(orphan_wait_s=0.5)
    rid = await start_stream(first)
    async with (
        second.client() as client,
        client.stream("GET", f"/v1/streams/{rid}") as response,
    ):
        assert response.status_code == 200
        await time_to_err(5.5)  # the first one was swept: it is read elsewhere
        assert await stack.cluster.ownership.last(rid) is None
        await second.die()

    async def is_ended() -> bool:
        last = await stack.cluster.ownership.last(rid)
        return last is not None and isinstance(last.record, End)

    await eventually_async(is_ended, 20)
    assert not third.task.done()


async def test_nobody_is_swept_while_heartbeats_cannot_be_stored(stack: Stack) -> None:
    """Servers that choose a leader take longer than heartbeats live: also those of the living."""
    stack.backend.hold.clear()
    doomed = await stack.start_frontend(orphan_wait_s=0.2)
    survivor = await stack.start_frontend(orphan_wait_s=0.2)
    roles = stack.cluster.bucket(stack.cluster.subjects.roles_bucket)
    await eventually(lambda: survivor.has_seen(doomed))
    rid = await start_stream(doomed)
    await roles.delete(doomed.frontend_id)
    for _ in range(8):
        survivor.frontend.side.streams.heartbeat.writability.note(is_written=False)
        await time_to_err(0.5)
        assert await stack.cluster.ownership.last(rid) is None

    async def is_ended() -> bool:
        last = await stack.cluster.ownership.last(rid)
        return last is not None and isinstance(last.record, End)

    await eventually_async(is_ended, 20)


async def test_whoever_stands_in_line_is_not_swept(stack: Stack) -> None:
    stack.backend.hold.clear()
    doomed = await stack.start_frontend(orphan_wait_s=0.2)
    survivor = await stack.start_frontend(orphan_wait_s=0.2)
    rid = await start_stream(doomed)
    finder = survivor.frontend.inference._current.known._finder
    known, go_on = finder.known, asyncio.Event()

    async def slow(group_id: str, owner: str) -> Any:
        await go_on.wait()
        return await known(group_id, owner)

    finder.known = slow  # type: ignore[method-assign]
    stack.say("Hello")
    async with survivor.client() as client:
        task = asyncio.create_task(client.get(f"/v1/streams/{rid}"))
        await time_to_err(8.0)  # its heartbeat expires, and two sweeps pass
        assert await stack.cluster.ownership.last(rid) is None
        go_on.set()
        stack.backend.hold.set()
        answer = await task
    assert answer.status_code == 200
    assert "Hello" in answer.text


async def test_a_full_queue_does_not_refuse_what_it_holds(stack: Stack) -> None:
    """The first answer was lost; three servers tell of the second copy only that it is full."""
    request = make_request()
    queue, payload = stack.cluster.queue, encode(request)
    await queue.put(request, "interactive", payload)
    await queue.put(request, "interactive", payload)  # its subject is taken
    await queue.put(request, "batch", payload)  # as another frontend, for the same key
    while True:
        try:
            other = make_request()
            await queue.put(other, "interactive", encode(other))
        except LimitReached:
            break
    await queue.put(request, "batch-1", payload, may_be_stored=True)
    with pytest.raises(LimitReached):
        await queue.put(request, "batch-1", payload)
    with pytest.raises(LimitReached):
        await queue.put(make_request(), "interactive", payload, may_be_stored=True)


async def test_a_choice_that_is_over_hides_no_other(stack: Stack) -> None:
    def script(request: GenerateRequest) -> Script:
        return Script([f"{request.reply.choice_idx}"], delay_s=0.5 * request.reply.choice_idx)

    stack.answer(script)
    doomed, survivor = await stack.start_frontend(), await stack.start_frontend()
    rid = await start_stream(doomed, n=3)

    async def is_first_over() -> bool:
        return await stack.cluster.queue.find(rid) is None

    await eventually_async(is_first_over)
    async with survivor.client() as client:
        answer = await client.get(f"/v1/streams/{rid}")
    assert answer.status_code == 200
    assert all(f'"content":"{idx}"' in answer.text for idx in range(3))


async def test_a_stream_that_is_being_ended_is_told_so(stack: Stack) -> None:
    stack.backend.hold.clear()
    doomed, survivor = await stack.start_frontend(), await stack.start_frontend()
    rid = await start_stream(doomed)
    request = await stack.cluster.queue.find(rid)
    assert request is not None
    assert await survivor.frontend.side.inference.ends.attachments.leave(
        rid, request.reply, doomed.frontend_id
    )
    end = End(0, FinishReason.CANCEL, by="test", reply=request.reply)
    async with survivor.client() as client:
        task = asyncio.create_task(client.get(f"/v1/streams/{rid}"))
        await asyncio.sleep(0.3)
        await stack.cluster.ownership.end(rid, end)
        stack.backend.hold.set()
        answer = await task
    assert '"code":"cancelled"' in answer.text or '"cancelled"' in answer.text
