"""What a frontend ends, once it can; what it leaves to others; and what goes with a request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.inference.answers.terminator import Terminator
from shared.errors import BrokerUnavailable, CasConflict
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.request import GenerateRequest
from shared.subjects import choice_rid
from tests.bad_moment import answer_lost_once, failing_once
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.inference.test_accept import until_object_is_gone
from tests.frontend.inference.test_queue_timeout import claim, queued
from tests.frontend.sse import sse_events, text_of

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**BODY, "stream": True}
KEY = {"Idempotency-Key": "k"}


def terminator_of(running: RunningFrontend) -> Terminator:
    return running.frontend.side.inference.ends.terminator


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.inference.answers.terminator._RETRY_S", 0.01)


async def until_ended(stack: Stack, rid: str) -> End:
    async def is_ended() -> bool:
        last = await stack.cluster.ownership.last(rid)
        return last is not None and isinstance(last.record, End)

    await eventually_async(is_ended)
    last = await stack.cluster.ownership.last(rid)
    assert last is not None
    assert isinstance(last.record, End)
    return last.record


@pytest.mark.parametrize("error", [CasConflict("changed"), BrokerUnavailable("away")])
async def test_what_could_not_be_ended_at_once_is_ended_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, impatience: None, error: Exception
) -> None:
    """Somebody else came or left in that moment, or NATS was away."""
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    failing_once(monkeypatch, running.frontend.side.inference.ends.attachments, "leave", error)
    async with running.client() as client, client.stream("POST", CHAT, json=STREAM) as response:
        rid = response.headers["x-request-id"]
    assert (await until_ended(stack, rid)).reason is FinishReason.CANCEL


async def test_what_waited_too_long_is_ended_once_nats_is_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, impatience: None
) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    ownership = running.frontend.side.streams.cluster.ownership
    failing_once(monkeypatch, ownership, "append", BrokerUnavailable("away"))
    body = {**STREAM, "queue_timeout_s": 0.1}
    async with running.client() as client, client.stream("POST", CHAT, json=body) as response:
        rid = response.headers["x-request-id"]
        assert (await until_ended(stack, rid)).reason is FinishReason.QUEUE_TIMEOUT


@pytest.mark.parametrize("queue_timeout_s", [None, 0.1])
async def test_an_end_whose_answer_was_lost_is_known_for_ones_own(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    impatience: None,
    queue_timeout_s: float | None,
) -> None:
    """Its request leaves the queue, and counts as ended once."""
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    ownership = running.frontend.side.streams.cluster.ownership
    answer_lost_once(monkeypatch, ownership, "append", BrokerUnavailable("no answer"))
    body = {**STREAM, "queue_timeout_s": queue_timeout_s}
    async with running.client() as client, client.stream("POST", CHAT, json=body) as response:
        rid = response.headers["x-request-id"]
        if queue_timeout_s is not None:
            await until_ended(stack, rid)
    reason = (await until_ended(stack, rid)).reason
    await stack.until_queued(0)
    assert len(await stack.cluster.ownership.read(rid)) == 1
    ended = running.metrics.answers.ended.labels(reason.value)
    await eventually(lambda: ended.value == 1)


async def test_who_ends_what_has_ended_counts_nothing(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    terminator = terminator_of(running)
    async with running.client() as client, client.stream("POST", CHAT, json=STREAM) as response:
        rid = response.headers["x-request-id"]
        assert await terminator.end(rid, stack.card.pool, None, FinishReason.CANCEL)
        assert not await terminator.end(rid, stack.card.pool, None, FinishReason.CANCEL)
    await eventually(lambda: not terminator._tasks)
    assert running.metrics.answers.ended.labels("cancel").value == 1


async def test_what_was_claimed_in_time_is_not_tried_again(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        task = asyncio.create_task(client.post(CHAT, json={**BODY, "queue_timeout_s": 0.1}))
        request = await queued(stack)
        await claim(stack, request)
        (generation,) = running.frontend.side.streams.router.generations
        await eventually(lambda: generation.queue_timeout_at == float("inf"))
        await eventually(lambda: not terminator_of(running)._tasks)
        stack.backend.hold.set()
        assert (await task).status_code == 200


async def test_a_choice_that_is_over_is_not_ended_with_the_others(stack: Stack) -> None:
    def script(request: GenerateRequest) -> Script:
        return Script(["a"], never_finish=request.reply.choice_idx == 1)

    stack.answer(script)
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json={**STREAM, "n": 2}) as response:
            rid = response.headers["x-request-id"]
            (generation,) = running.frontend.side.streams.router.generations
            await eventually(lambda: generation.streams[0].finish is not None)
        await until_ended(stack, choice_rid(rid, 1))
        await eventually(lambda: running.frontend.side.streams.router.generations == [])
    assert await stack.cluster.ownership.last(rid) is None
    assert running.metrics.answers.ended.labels("cancel").value == 1


async def test_who_leaves_does_not_end_what_another_client_reads_here(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("Hello", " there", gate=gate)
    running = await stack.start_frontend()
    router = running.frontend.side.streams.router
    async with (
        running.client(headers=KEY) as client,
        client.stream("POST", CHAT, json=STREAM) as stays,
    ):
        rid, events = stays.headers["x-request-id"], sse_events(stays)
        async with client.stream("POST", CHAT, json=STREAM) as leaves:
            assert leaves.headers["x-request-id"] == rid
        await eventually(lambda: len(router.generations) == 1)
        await eventually(lambda: not terminator_of(running)._tasks)
        assert await stack.cluster.ownership.last(rid) is None
        gate.set()
        assert text_of([event async for event in events]) == "Hello there"


async def test_a_deadline_that_all_readers_have_ends_it_for_all(stack: Stack) -> None:
    """Who notices first does not wait for the others to leave."""
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers={**KEY, "X-Request-Timeout": "0.5"}) as client:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        request = await queued(stack)
        attachments = second.frontend.side.inference.ends.attachments
        assert await attachments.join(request.rid, request.reply) is not None
        assert (await until_ended(stack, request.rid)).reason is FinishReason.DEADLINE
        assert (await waiting).status_code == 408


async def test_a_deadline_ends_what_nobody_reads(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    body = {"model": "tiny", "input": "Hi", "background": True}
    async with running.client(headers={"X-Request-Timeout": "0.3"}) as client:
        made = (await client.post("/v1/responses", json=body)).json()
    end = await until_ended(stack, made["id"].removeprefix("resp_"))
    assert end.reason is FinishReason.DEADLINE


async def test_what_runs_without_a_reader_counts_here_until_it_ends(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    router = running.frontend.side.streams.router
    body = {"model": "tiny", "input": "Hi", "background": True, "stream": True}
    async with running.client() as client:
        async with client.stream("POST", "/v1/responses", json=body):
            await queued(stack)
        await eventually(lambda: not any(one.is_watched for one in router.generations))
        assert len(router.generations) == 1
        stack.backend.hold.set()
        await eventually(lambda: router.generations == [])


# Prompts in the object store


async def start_large(running: RunningFrontend, stack: Stack, **headers: str) -> GenerateRequest:
    """A queued request whose client has left."""
    async with (
        running.client(headers=headers) as client,
        client.stream("POST", CHAT, json=STREAM),
    ):
        request = await queued(stack)
    assert request.prompt_object
    return request


async def test_the_prompt_goes_with_a_request_that_another_frontend_ends(
    stack: Stack, large_prompts: None
) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    request = await start_large(first, stack, **{"X-Resume-Grace": "20"})
    await first.die()
    async with second.client() as other:
        aborted = await other.post("/abort_request", json={"rid": request.rid})
        assert aborted.json()["num_aborted"] == 1
    await until_object_is_gone(stack, request.prompt_object)


async def test_the_prompt_goes_with_a_request_that_finishes_without_its_client(
    stack: Stack, large_prompts: None
) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    request = await start_large(running, stack, **{"X-Resume-Grace": "20"})
    stack.backend.hold.set()
    await until_object_is_gone(stack, request.prompt_object)
    assert await stack.cluster.ownership.last(request.rid) is None


async def test_the_prompt_stays_for_a_request_that_is_read_elsewhere(
    stack: Stack, large_prompts: None
) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    router = first.frontend.side.streams.router
    async with first.client() as client, second.client() as other:
        async with client.stream("POST", CHAT, json=STREAM) as response:
            rid, request = response.headers["x-request-id"], await queued(stack)
            resumed = asyncio.create_task(other.get(f"/v1/streams/{rid}"))
            await eventually(lambda: len(second.frontend.side.streams.router.generations) == 1)
            attachments = second.frontend.side.inference.ends.attachments

            async def is_joined() -> bool:
                return await attachments.joined_by(second.frontend_id) == [rid]

            await eventually_async(is_joined)
            await eventually(lambda: second.frontend.side.inference.ends.answers.num_open == 1)
        await eventually(lambda: router.generations == [])
        await eventually(lambda: not terminator_of(first)._tasks)
        objects = stack.cluster.objects(stack.cluster.subjects.objects_bucket)
        assert await objects.find(request.prompt_object) is not None
        stack.backend.hold.set()
        assert "Hello" in (await resumed).text


async def test_what_is_being_ended_is_ended_before_its_frontend_is_gone(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.inference.answers.terminator._RETRY_S", 0.5)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    terminator = terminator_of(running)
    attachments = running.frontend.side.inference.ends.attachments
    failing_once(monkeypatch, attachments, "leave", BrokerUnavailable("away"))
    async with running.client() as client, client.stream("POST", CHAT, json=STREAM) as response:
        rid = response.headers["x-request-id"]
    await eventually(lambda: bool(terminator._tasks))
    await terminator.close(10.0)
    last = await stack.cluster.ownership.last(rid)
    assert last is not None
    assert isinstance(last.record, End)
