"""Who comes back to a stream: what it waits for, and what is left of it when it gets none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from frontend.inference.resuming.resumer import Resumer
from frontend.inference.resuming.stream_finder import KnownChoice
from frontend.text.event_id import EventId, Mark, parse_event_id
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.request import GenerateRequest, Readers
from shared.protocol.text import checksum
from shared.subjects import choice_rid
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import STOP, Script
from tests.frontend.sse import SseEvent, sse_events, text_of

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**BODY, "stream": True}
KEY = {"Idempotency-Key": "k"}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)
WHOLE = Mark(len(PIECES), len(TEXT), checksum(TEXT))


def resumer_of(running: RunningFrontend) -> Resumer:
    return running.frontend.side.inference.side._resumer


def num_read(running: RunningFrontend) -> int:
    """Groups of requests that are read there, as it believes."""
    return len(running.frontend.side.streams.router.generations)


async def readers(stack: Stack, rid: str) -> tuple[str, ...]:
    """The frontends at which a request is read, as all of them know it."""
    entry = await stack.cluster.bucket(stack.cluster.subjects.attached_bucket).get(rid)
    return () if entry is None else decode(Readers, entry.value).frontends


async def resume(client: httpx.AsyncClient, rid: str, mark: Mark) -> httpx.Response:
    headers = {"Last-Event-ID": str(EventId(rid, (mark,)))}
    return await client.get(f"/v1/streams/{rid}", headers=headers)


@dataclass
class Reading:
    """A stream that one frontend has begun to tell, and a client of a second one."""

    first: RunningFrontend
    second: RunningFrontend
    other: httpx.AsyncClient
    rid: str
    events: AsyncIterator[SseEvent]
    seen: list[SseEvent]
    gate: asyncio.Event  # the rest is not made before it is set

    async def rest(self) -> str:
        """Let it go on to its end: what the first client reads in all."""
        self.gate.set()
        return text_of([*self.seen, *[event async for event in self.events]])


@pytest.fixture
async def reading(stack: Stack) -> AsyncIterator[Reading]:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with (
        first.client() as client,
        second.client() as other,
        client.stream("POST", CHAT, json=STREAM) as response,
    ):
        rid, events = response.headers["x-request-id"], sse_events(response)
        seen = [await anext(events), await anext(events)]
        yield Reading(first, second, other, rid, events, seen, gate)


async def test_a_refused_client_takes_a_stream_from_nobody(stack: Stack, reading: Reading) -> None:
    (mark,) = parse_event_id(reading.seen[-1].event_id).marks
    wrong = mark._replace(checksum=mark.checksum ^ 1)
    refused = await resume(reading.other, reading.rid, wrong)
    assert refused.status_code == 409
    assert num_read(reading.second) == 0
    assert await readers(stack, reading.rid) == (reading.first.frontend_id,)
    assert await reading.rest() == TEXT


@pytest.mark.parametrize(("detokenizer_answers", "status_code"), [(True, 503), (False, 500)])
async def test_who_stops_while_a_client_catches_up_gives_its_stream_back(
    stack: Stack, reading: Reading, detokenizer_answers: bool, status_code: int
) -> None:
    """Else it would count as the only reader, and who looks after the dead would end it."""
    stack.backend.answer_replays = detokenizer_answers
    coming_back = asyncio.create_task(resume(reading.other, reading.rid, WHOLE))
    second, cluster = reading.second, reading.second.frontend.side.streams.cluster

    async def is_taken() -> bool:
        return await readers(stack, reading.rid) == (second.frontend_id,)

    await eventually_async(is_taken)
    second.frontend.shutdown.ask()
    await second.task
    await cluster.nc.close()
    assert await readers(stack, reading.rid) == (reading.first.frontend_id,)
    assert (await coming_back).status_code == status_code
    assert await reading.rest() == TEXT


async def test_a_client_that_is_ahead_of_a_detokenizer_is_waited_for(reading: Reading) -> None:
    """It heard one that has died, and the next has not read so far yet."""
    coming_back = asyncio.create_task(resume(reading.other, reading.rid, WHOLE))
    await eventually(lambda: num_read(reading.second) == 1)
    reading.gate.set()
    answer = await coming_back
    assert answer.status_code == 200
    assert '"finish_reason":"stop"' in answer.text
    assert not any(piece in answer.text for piece in PIECES), "it has the text already"
    assert answer.text.rstrip().endswith("[DONE]")


async def test_who_is_ahead_for_too_long_may_come_again(
    stack: Stack, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.inference.resuming.resumer._CATCH_UP_S", 0.1)
    refused = await resume(reading.other, reading.rid, WHOLE)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert num_read(reading.second) == 0
    assert await readers(stack, reading.rid) == (reading.first.frontend_id,)
    assert await reading.rest() == TEXT


async def test_a_choice_that_is_over_does_not_leave_the_others_without_a_reader(
    stack: Stack,
) -> None:
    gate = asyncio.Event()

    def script(request: GenerateRequest) -> Script:
        is_first = request.reply.choice_idx == 0
        return Script(["a"]) if is_first else Script(["b", "c"], gate=gate)

    stack.answer(script)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with (
        first.client() as client,
        second.client() as other,
        client.stream("POST", CHAT, json={**STREAM, "n": 2}) as response,
    ):
        rid = response.headers["x-request-id"]

        async def is_first_over() -> bool:
            return await stack.cluster.queue.find(rid) is None

        await eventually_async(is_first_over)
        async with other.stream("GET", f"/v1/streams/{rid}") as resumed:
            assert resumed.status_code == 200
            assert await readers(stack, choice_rid(rid, 1)) == (second.frontend_id,)
            gate.set()


async def test_a_key_whose_request_is_being_ended_starts_anew_and_leaves_nothing(
    stack: Stack,
) -> None:
    """Its last reader has left, and nobody has written its end yet."""
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers=KEY) as client, second.client(headers=KEY) as other:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        (generation,) = first.frontend.side.streams.router.generations
        rid = generation.group_id
        attachments = first.frontend.side.inference.ends.attachments
        assert await attachments.leave(rid, generation.reply)
        anew = asyncio.create_task(other.post(CHAT, json=BODY))
        await stack.until_queued(2)
        stack.backend.hold.set()
        answer = await anew
        await waiting
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] != rid
    assert num_read(second) == 0


RESULTS = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR, FinishReason.POISON]


async def test_a_key_starts_anew_behind_what_ended_without_a_result(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        for reason in FinishReason:
            headers = {"Idempotency-Key": reason.value}
            stack.say("a", finish=Finish(reason))
            first = await client.post(CHAT, json=BODY, headers=headers)
            stack.say("b", finish=STOP)
            again = await client.post(CHAT, json=BODY, headers=headers)
            ids = {each.headers["x-request-id"] for each in (first, again)}
            assert len(ids) == (1 if reason in RESULTS else 2), reason


@pytest.mark.parametrize("how", ["resume", "join", "read"])
async def test_whoever_comes_back_stands_in_line_until_it_has_joined(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Or a sweep of what a dead frontend left would end it in that moment."""
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    resumer = resumer_of(second)
    known, is_asked, go_on = resumer._finder.known, asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def slowly(group_id: str, owner: str) -> list[KnownChoice]:
        is_asked.release()
        await go_on.acquire()
        return await known(group_id, owner)

    monkeypatch.setattr(resumer._finder, "known", slowly)
    async with first.client() as client, second.client() as other:
        if how == "read":
            body = {"model": "tiny", "input": "Hi", "background": True, "stream": False}
            made = (await client.post("/v1/responses", json=body)).json()
            rid = made["id"].removeprefix("resp_")
            method, path = "GET", f"/v1/responses/resp_{rid}?stream=true"
        else:
            headers = {**KEY, "X-Resume-Grace": "20"}
            async with client.stream("POST", CHAT, json=STREAM, headers=headers) as response:
                rid = response.headers["x-request-id"]
            method, path = ("GET", f"/v1/streams/{rid}") if how == "resume" else ("POST", CHAT)

        async def come_back() -> int:
            json, headers = (STREAM, KEY) if method == "POST" else (None, {})
            async with other.stream(method, path, json=json, headers=headers) as response:
                return response.status_code

        coming = [asyncio.create_task(come_back()) for _ in range(2)]
        for _ in coming:
            await is_asked.acquire()
        assert resumer.is_in_line(rid)
        go_on.release()
        done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [200]
        assert resumer.is_in_line(rid), "the other one is still on its way"
        go_on.release()
        assert [await task for task in coming] == [200, 200]
        assert not resumer.is_in_line(rid)
        stack.backend.hold.set()


async def test_time_in_the_queue_counts_also_for_who_comes_back(stack: Stack) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    headers = {"X-Request-Timeout": "30", "X-Resume-Grace": "20"}
    async with first.client(headers=headers) as client, second.client() as other:
        body = {**STREAM, "queue_timeout_s": 20.0}
        async with client.stream("POST", CHAT, json=body) as response:
            rid = response.headers["x-request-id"]
        await asyncio.sleep(0.5)  # it grows older
        async with other.stream("GET", f"/v1/streams/{rid}") as response:
            assert response.status_code == 200
            (generation,) = second.frontend.side.streams.router.generations
            now = asyncio.get_running_loop().time()
            assert generation.deadline_at - now <= 29.5
            assert generation.queue_timeout_at - now <= 19.5
            stack.backend.hold.set()
