"""Streams go on elsewhere: after any event, on any frontend, without a splice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.streams.detok_client import DetokClient
from frontend.text.event_id import parse_event_id
from shared.errors import NotFound
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End, Release
from shared.protocol.request import GenerateRequest, Readers
from shared.protocol.sealed_replies import unseal
from shared.subjects import new_rid
from tests.eventually import Looks, eventually
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script
from tests.frontend.sse import SseEvent, sse_events, text_of
from tests.time_to_err import time_to_err
from tests.worker.io_stage import make_claim, make_request

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
}
PIECES = ["Grüße", " 🙂", " from", " here"]
TEXT = "".join(PIECES)


async def test_a_finished_stream_resumes_after_every_event(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=0.03)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            events = [event async for event in sse_events(response)]
        assert len(events) == 7  # role, four pieces, finish, done
        for num_seen in range(7):
            seen = events[:num_seen]
            headers = {"Last-Event-ID": seen[-1].event_id} if seen else {}
            async with other.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
                assert response.status_code == 200
                rest = [event async for event in sse_events(response)]
            assert text_of(seen) + text_of(rest) == TEXT
            assert rest[-1].data == "[DONE]"
            assert rest[-2].json["choices"][0]["finish_reason"] == "stop"
            assert rest[-2].event_id == events[-2].event_id
            whole = {
                (e.json["id"], e.json["created"], e.json["model"])
                for e in (*events, *rest)
                if e.data != "[DONE]"
            }
            assert len(whole) == 1


async def test_a_running_stream_resumes_on_another_frontend(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers={"X-Resume-Grace": "0.5"}) as client, second.client() as other:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            events = sse_events(response)
            seen = [await anext(events), await anext(events)]
        async with other.stream(
            "GET", f"/v1/streams/{rid}", params={"last_event_id": seen[-1].event_id}
        ) as response:
            attached = stack.cluster.bucket(stack.cluster.subjects.attached_bucket)
            entry = await attached.get(rid)
            assert entry is not None
            assert decode(Readers, entry.value).frontends == (second.frontend_id,)
            await time_to_err(1.0)  # beyond the grace period of the first
            gate.set()
            rest = [event async for event in sse_events(response)]
    assert text_of(seen + rest) == TEXT
    assert await stack.cluster.ownership.last(rid) is None


async def test_the_same_post_with_a_last_event_id_resumes(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=0.03)
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json=BODY) as response:
            events = [event async for event in sse_events(response)]
        headers = {"Last-Event-ID": events[2].event_id}
        async with client.stream("POST", CHAT, json=BODY, headers=headers) as response:
            rest = [event async for event in sse_events(response)]
    assert text_of(events[:3] + rest) == TEXT
    assert len(stack.backend.runs) == 1


async def test_a_group_resumes_from_one_event(stack: Stack) -> None:
    def script(request: GenerateRequest) -> Script:
        idx = request.reply.choice_idx
        return Script([f"{idx}a", "bé", "c", f"{idx}d"], delay_s=0.02 + 0.007 * idx)

    stack.answer(script)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    body = {"model": "tiny", "prompt": ["x", "yz"], "n": 2, "stream": True, "echo": True}
    async with first.client() as client, second.client() as other:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            rid = response.headers["x-request-id"]
            events = [event async for event in sse_events(response)]
        expected = texts_by_choice(events)
        assert expected == {0: "x0abéc0d", 1: "x1abéc1d", 2: "yz2abéc2d", 3: "yz3abéc3d"}
        for cut in (0, 4, 7, 12, len(events) - 1):
            seen = events[:cut]
            headers = {"Last-Event-ID": seen[-1].event_id} if seen else {}
            async with other.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
                assert response.status_code == 200, await response.aread()
                rest = [event async for event in sse_events(response)]
            assert texts_by_choice([*seen, *rest]) == expected


def texts_by_choice(events: list[SseEvent]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        if event.data != "[DONE]":
            idx = event.json["choices"][0]["index"]
            texts[idx] = texts.get(idx, "") + event.text
    return texts


async def test_another_text_is_a_conflict_never_a_splice(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            events = [event async for event in sse_events(response)]
        mark = parse_event_id(events[-1].event_id).marks[0]
        wrong = [
            f"{rid}.{mark.position}.{mark.text_len}.{mark.checksum ^ 1:08x}",
            f"{rid}.{mark.position}.{mark.text_len - 1}.{mark.checksum:08x}",
            f"{rid}.{mark.position}.{mark.text_len + 5}.{mark.checksum:08x}",
            f"{rid}.{mark}_{mark}",
        ]
        for event_id in wrong:
            answer = await client.get(f"/v1/streams/{rid}", headers={"Last-Event-ID": event_id})
            assert answer.status_code == 409, event_id
            assert answer.json()["error"]["code"] == "resume_mismatch"
        answer = await client.get(f"/v1/streams/{rid}", headers={"Last-Event-ID": "junk"})
        assert answer.status_code == 400


async def test_a_queued_request_can_be_resumed(stack: Stack) -> None:
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client(headers={"X-Resume-Grace": "20"}) as client, second.client() as other:
        async with client.stream("POST", CHAT, json={**BODY, "n": 2}) as response:
            rid = response.headers["x-request-id"]
            opening = await anext(sse_events(response))
        async with other.stream(
            "GET", f"/v1/streams/{rid}", headers={"Last-Event-ID": opening.event_id}
        ) as response:
            assert response.status_code == 200, await response.aread()
            stack.backend.hold.set()
            rest = [event async for event in sse_events(response)]
    assert texts_by_choice(rest) == {0: "Hello, world!", 1: "Hello, world!"}


async def test_what_is_in_the_log_is_known_before_a_detokenizer_has_read_it(stack: Stack) -> None:
    """Or a client that comes back in that moment is told that there is no such stream."""
    cluster = stack.cluster
    finder = StreamFinder(cluster, DetokClient(cluster.nc, cluster.subjects, "jf.out.nobody"))
    taken, given_back, ended = (make_request() for _ in range(3))
    await cluster.ownership.append(taken.rid, make_claim(taken, "w"))
    epoch = await cluster.ownership.append(given_back.rid, make_claim(given_back, "w"))
    await cluster.ownership.append(given_back.rid, Release(epoch, "w"))
    end = End(0, FinishReason.CANCEL, by="a frontend", reply=ended.reply)
    await cluster.ownership.append(ended.rid, end)
    for request in (taken, given_back, ended):
        (choice,) = await finder.known(request.rid, "")
        assert (choice.rid, choice.reply, choice.is_over) == (
            request.rid,
            unseal(request.reply),
            False,
        )
    await cluster.ownership.append(rid := new_rid(), End(0, FinishReason.CANCEL, by="a stranger"))
    with pytest.raises(NotFound):
        await finder.known(rid, "")


async def test_the_whole_result_can_be_fetched_later(stack: Stack) -> None:
    stack.say(*PIECES, finish=Finish(FinishReason.LENGTH, num_cached_tokens=4))
    running = await stack.start_frontend()
    async with running.client() as client:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            [event async for event in sse_events(response)]
        answer = await client.get(f"/v1/streams/{rid}", params={"stream": "false"})
    assert answer.json()["choices"][0]["message"]["content"] == TEXT
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_streams_belong_to_an_api_key(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("alpha", "beta"))
    async with running.client(headers={"Authorization": "Bearer alpha"}) as client:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            [event async for event in sse_events(response)]
        for path, key, status in [
            (f"/v1/streams/{rid}", "alpha", 200),
            (f"/v1/streams/{rid}", "beta", 404),
            (f"/v1/streams/{rid}", "gamma", 401),
            (f"/v1/streams/{'0' * 32}", "alpha", 404),
        ]:
            answer = await client.get(path, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status, (path, key)
        aborted = await client.post(
            "/abort_request", json={"rid": rid}, headers={"Authorization": "Bearer beta"}
        )
        assert aborted.status_code == 404
    assert stack.backend.runs[rid].reply.owner not in ("", "alpha")


async def test_lost_and_repeated_frames_change_nothing(stack: Stack) -> None:
    stack.say(*PIECES, delay_s=0.02, lose=frozenset({1, 3}), twice=True)
    running = await stack.start_frontend()
    async with running.client() as client, client.stream("POST", CHAT, json=BODY) as response:
        events = [event async for event in sse_events(response)]
    assert text_of(events) == TEXT
    assert stack.backend.replays


async def test_shutdown_leaves_the_request_running(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    first, second = await stack.start_frontend(shutdown_timeout_s=0.3), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        async with client.stream("POST", CHAT, json=BODY) as response:
            rid = response.headers["x-request-id"]
            events = sse_events(response)
            seen = [await anext(events), await anext(events)]
            first.frontend.shutdown.ask()
            async for _ in Looks():
                if (await client.get("/ready")).status_code == 503:
                    break
            refused = await client.post(CHAT, json=BODY)
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
            assert refused.headers["retry-after"] == "1"
            seen += [event async for event in events]  # ends without [DONE]
        assert seen[-1].data != "[DONE]"
        await asyncio.wait_for(first.task, 5)
        assert await stack.cluster.ownership.last(rid) is None
        async with other.stream(
            "GET", f"/v1/streams/{rid}", headers={"Last-Event-ID": seen[-1].event_id}
        ) as response:
            gate.set()
            rest = [event async for event in sse_events(response)]
    assert text_of(seen + rest) == TEXT


async def test_what_finishes_in_time_is_not_cut(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say(*PIECES, gate=gate)
    running = await stack.start_frontend(shutdown_timeout_s=60.0)
    async with running.client() as client, client.stream("POST", CHAT, json=BODY) as response:
        events = sse_events(response)
        seen = [await anext(events)]
        running.frontend.shutdown.ask()
        gate.set()
        seen += [event async for event in events]
        assert text_of(seen) == TEXT
        assert seen[-1].data == "[DONE]"
        async with asyncio.timeout(10.0):  # although its connection is kept alive
            await running.task


async def test_a_second_signal_cuts_streams_and_answers(stack: Stack) -> None:
    stack.say(*PIECES, gate=asyncio.Event())
    running = await stack.start_frontend(shutdown_timeout_s=60.0)
    whole = {**BODY, "stream": False}
    async with running.client() as client, client.stream("POST", CHAT, json=BODY) as response:
        events = sse_events(response)
        seen = [await anext(events)]
        waiting = asyncio.create_task(client.post(CHAT, json=whole))
        answers = running.frontend.side.inference.ends.answers
        await eventually(lambda: answers.num_open == 2)
        running.frontend.shutdown.ask()
        running.frontend.shutdown.ask()
        async with asyncio.timeout(10.0):
            seen += [event async for event in events]
            answer = await waiting
            await running.task
    assert seen[-1].data != "[DONE]"
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"
    assert "runs on" in answer.json()["error"]["message"]
