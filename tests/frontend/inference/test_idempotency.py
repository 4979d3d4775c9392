"""Idempotency keys: one generation a key, whoever asks, whoever leaves, whatever dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from frontend.jobs.idempotency_key import fingerprint, key_name, key_of
from shared.errors import InvalidRequest
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.reply import Surface
from shared.protocol.request import Readers
from tests.eventually import Looks, eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.sse import sse_events, text_of
from tests.time_to_err import time_to_err

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 1.0,
}
STREAM = {**BODY, "stream": True}
KEY = {"Idempotency-Key": "order-7"}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)

integration = pytest.mark.integration


def test_a_fingerprint_is_of_what_is_asked() -> None:
    same = [BODY, STREAM, dict(reversed(list(BODY.items()))), {**BODY, "idempotency_key": "k"}]
    assert len({fingerprint(Surface.CHAT, body) for body in same}) == 1
    others = [BODY, {**BODY, "n": 2}, {**BODY, "temperature": 0.5}, {**BODY, "x": None}]
    assert len({fingerprint(Surface.CHAT, body) for body in others}) == 4
    assert fingerprint(Surface.CHAT, BODY) != fingerprint(Surface.COMPLETIONS, BODY)


def test_keys_are_checked_and_kept_apart_by_owner() -> None:
    assert key_of({}, "") == ""
    assert key_of({"idempotency_key": "a"}, "") == key_of({}, "a") == "a"
    for bad in ("", "x" * 256, "a\nb", "ä", 5):
        with pytest.raises(InvalidRequest) as caught:
            key_of({"idempotency_key": bad}, "")
        assert caught.value.param == "idempotency_key"
    with pytest.raises(InvalidRequest, match=r"'a'.*'b'"):
        key_of({"idempotency_key": "a"}, "b")
    assert len({key_name("o", "k"), key_name("p", "k"), key_name("o", "l")}) == 3


@integration
@pytest.mark.parametrize("num_choices", [1, 3])
async def test_many_at_once_on_two_frontends_are_one_generation(
    stack: Stack, num_choices: int
) -> None:
    stack.say(*PIECES, delay_s=0.02)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    body = {**BODY, "n": num_choices}
    async with first.client(headers=KEY) as client, second.client(headers=KEY) as other:
        answers = await asyncio.gather(
            *((client, other)[i % 2].post(CHAT, json=body) for i in range(20))
        )
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers]
    assert len({answer.text for answer in answers}) == 1
    texts = [choice["message"]["content"] for choice in answers[0].json()["choices"]]
    assert texts == [TEXT] * num_choices
    assert len({answer.headers["x-request-id"] for answer in answers}) == 1
    assert len(stack.backend.runs) == num_choices
    assert stack.backend.num_served == num_choices


@integration
async def test_a_joined_stream_starts_at_the_beginning(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers=KEY) as client, second.client(headers=KEY) as other:
        async with client.stream("POST", CHAT, json=STREAM) as one:
            events = sse_events(one)
            seen = [await anext(events), await anext(events)]
            async with (
                other.stream("POST", CHAT, json=STREAM) as two,
                client.stream("POST", CHAT, json=STREAM) as three,
            ):
                joined = [sse_events(two), sse_events(three)]
                began = [[await anext(e), await anext(e)] for e in joined]
                whole = asyncio.create_task(other.post(CHAT, json=BODY))
                gate.set()
                texts = [
                    text_of([*begun, *[event async for event in rest]])
                    for begun, rest in zip([seen, *began], [events, *joined], strict=True)
                ]
        answer = await whole
        late = await client.post(CHAT, json=BODY)
    assert texts == [TEXT, TEXT, TEXT]
    for response in (answer, late):
        assert response.json()["choices"][0]["message"]["content"] == TEXT
        assert response.headers["x-request-id"] == one.headers["x-request-id"]
    assert len(stack.backend.runs) == 1


@integration
async def test_another_body_is_409_and_another_key_or_owner_is_its_own(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("alpha", "beta"))
    async with running.client(headers={"Authorization": "Bearer alpha"}) as client:
        first = await client.post(CHAT, json=BODY, headers=KEY)
        refused = await client.post(CHAT, json={**BODY, "max_tokens": 3}, headers=KEY)
        assert refused.status_code == 409
        error = refused.json()["error"]
        assert error["code"] == "idempotency_key_reused"
        assert error["param"] == "Idempotency-Key"
        assert "order-7" in error["message"]
        elsewhere = await client.post("/generate", json={"text": "a"}, headers=KEY)
        assert elsewhere.status_code == 409
        ids = [first.headers["x-request-id"]]
        for headers in (
            {"Idempotency-Key": "order-8"},
            {},
            {**KEY, "Authorization": "Bearer beta"},
        ):
            answer = await client.post(CHAT, json=BODY, headers=headers)
            ids.append(answer.headers["x-request-id"])
        bad = await client.post(CHAT, json=BODY, headers={"Idempotency-Key": "x" * 256})
        assert bad.status_code == 400
    assert len(set(ids)) == len(stack.backend.runs) == 4
    assert counted(running, "conflict") == 2
    assert counted(running, "new") == 3


@integration
async def test_a_refused_body_leaves_its_key_free(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client(headers=KEY) as client:
        refused = await client.post(CHAT, json={**BODY, "temperature": 9})
        assert refused.status_code == 400
        assert (await client.post(CHAT, json=BODY)).status_code == 200


@integration
@pytest.mark.parametrize("leaver", ["first", "second"])
async def test_who_leaves_does_not_end_what_another_reads(stack: Stack, leaver: str) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers=KEY) as client, second.client(headers=KEY) as other:
        reads = asyncio.create_task(client.post(CHAT, json=BODY))
        rid = await first_rid(stack)
        joins = asyncio.create_task(other.post(CHAT, json=BODY))
        joins_here = asyncio.create_task(client.post(CHAT, json=BODY))
        await eventually(lambda: counted(second, "joined") + counted(first, "joined") == 2)
        left, stays = ([reads, joins_here], joins) if leaver == "first" else ([joins], reads)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await time_to_err(1.0)
        assert await stack.cluster.ownership.last(rid) is None
        gate.set()
        answer = await stays
        await asyncio.gather(reads, joins_here, return_exceptions=True)
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


@integration
async def test_the_last_one_who_leaves_ends_it_and_the_key_starts_anew(stack: Stack) -> None:
    stack.say("a", never_finish=True)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers=KEY) as client, second.client(headers=KEY) as other:
        one = asyncio.create_task(client.post(CHAT, json=BODY))
        rid = await first_rid(stack)
        two = asyncio.create_task(other.post(CHAT, json=BODY))
        await eventually(lambda: counted(second, "joined"))
        for task in (one, two):
            task.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        last = await eventually_async(lambda: stack.cluster.ownership.last(rid), 2)
        assert isinstance(last.record, End)
        stack.say(*PIECES)
        answer = await other.post(CHAT, json=BODY)
        assert answer.json()["choices"][0]["message"]["content"] == TEXT
        again = await client.post(CHAT, json=BODY)
        assert again.text == answer.text
    assert len(stack.backend.runs) == 2
    assert counted(second, "renewed") == 1


@integration
async def test_the_death_of_the_first_frontend(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    doomed = await stack.start_frontend(orphan_wait_s=0.5)
    survivor = await stack.start_frontend(orphan_wait_s=0.5)
    async with doomed.client(headers=KEY) as client, survivor.client(headers=KEY) as other:
        lost = asyncio.create_task(client.post(CHAT, json=BODY))
        rid = await first_rid(stack)
        await eventually(lambda: survivor.has_seen(doomed))
        doomed.task.cancel()  # no farewell: as kill -9, but for the heartbeat's deletion
        joined = asyncio.create_task(other.post(CHAT, json=BODY))
        await eventually(lambda: counted(survivor, "joined"))
        attached = stack.cluster.bucket(stack.cluster.subjects.attached_bucket)
        async for _ in Looks(60):  # until the dead one was struck off
            entry = await attached.get(rid)
            assert entry is not None
            if doomed.frontend_id not in decode(Readers, entry.value).frontends:
                break
        assert await stack.cluster.ownership.last(rid) is None
        gate.set()
        answer = await joined
        await asyncio.gather(lost, return_exceptions=True)
    assert answer.json()["choices"][0]["message"]["content"] == TEXT
    assert len(stack.backend.runs) == 1


@integration
async def test_a_frontend_that_dies_before_it_has_queued(stack: Stack) -> None:
    """The key has its group, and nothing else happened: whoever comes next queues it."""
    running = await stack.start_frontend()
    doomed = await stack.start_frontend()
    submitter = doomed.frontend.side.inference.side._acceptor._submitter
    hangs = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        hangs.set()
        await asyncio.Event().wait()

    submitter.submit = hang  # type: ignore[method-assign]
    async with doomed.client(headers=KEY) as client, running.client(headers=KEY) as other:
        lost = asyncio.create_task(client.post(CHAT, json={**BODY, "n": 2}))
        await hangs.wait()
        answer = await other.post(CHAT, json={**BODY, "n": 2})
        assert [c["message"]["content"] for c in answer.json()["choices"]] == ["Hello, world!"] * 2
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
    assert counted(running, "joined") == 1


@integration
async def test_a_full_queue_refuses_and_the_key_starts_anew_later(stack: Stack) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        waiting = [asyncio.create_task(client.post(CHAT, json=BODY)) for _ in range(7)]
        await stack.until_queued(7)
        body = {**BODY, "n": 2}
        refused = await client.post(CHAT, json=body, headers=KEY)
        assert refused.status_code == 429
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}
        answer = await other.post(CHAT, json=body, headers=KEY)
        assert answer.status_code == 200, answer.text
        again = await client.post(CHAT, json=body, headers=KEY)
    assert again.text == answer.text


@integration
async def test_an_error_is_told_again_and_a_missed_deadline_starts_anew(stack: Stack) -> None:
    running = await stack.start_frontend()
    stack.say("a", finish=Finish(FinishReason.ERROR, message="no token is left"))
    async with running.client() as client:
        for _ in range(2):
            answer = await client.post(CHAT, json=BODY, headers=KEY)
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "no token is left"
        assert len(stack.backend.runs) == 1
        stack.say("a", never_finish=True)
        headers = {"Idempotency-Key": "k2", "X-Request-Timeout": "0.4"}
        both = await asyncio.gather(
            *(client.post(CHAT, json=BODY, headers=headers) for _ in range(2))
        )
        assert [answer.status_code for answer in both] == [408, 408]
        stack.say(*PIECES)
        answer = await client.post(CHAT, json=BODY, headers={"Idempotency-Key": "k2"})
        assert answer.status_code == 200


@integration
async def test_keys_over_nats(stack: Stack) -> None:
    await stack.start_frontend()
    running = await stack.start_frontend()
    nc = stack.caller
    data = json.dumps({"text": "a", "idempotency_key": "k"}).encode()
    replies = [await nc.request("jetflock.generate", data, timeout=5) for _ in range(4)]
    assert len({reply.data for reply in replies}) == 1
    other = json.dumps({"text": "b", "idempotency_key": "k"}).encode()
    refused = await nc.request("jetflock.generate", other, timeout=5)
    assert (refused.headers or {})["Nats-Service-Error-Code"] == "409"
    async with running.client() as client:
        over_http = await client.post("/generate", json={"text": "a", "idempotency_key": "k"})
    assert over_http.content == replies[0].data
    assert len(stack.backend.runs) == 1


def counted(running: RunningFrontend, result: str) -> float:
    return float(running.metrics.acceptance.keyed.labels(result).value)


async def first_rid(stack: Stack) -> str:
    await eventually(lambda: stack.backend.runs)
    return next(iter(stack.backend.runs))
