"""/generate as SGLang has it: streams that grow, and lists of sampling parameters and names."""

from __future__ import annotations

import asyncio
import json
import struct
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest

from frontend.surfaces.generate.growing_events import SoFar
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import EmbeddingCard
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.sse import SseEvent, sse_events

pytestmark = pytest.mark.integration

STREAM: dict[str, Any] = {"text": "x", "stream": True}
PIECES = STREAM | {"incremental_streaming_output": True}


async def events_of(client: httpx.AsyncClient, body: dict[str, Any]) -> list[SseEvent]:
    async with client.stream("POST", "/generate", json=body) as response:
        assert response.status_code == 200
        return [event async for event in sse_events(response) if event.data != "[DONE]"]


async def resumed(client: httpx.AsyncClient, event: SseEvent) -> list[SseEvent]:
    rid, headers = event.event_id.partition(".")[0], {"Last-Event-ID": event.event_id}
    async with client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
        return [event async for event in sse_events(response) if event.data != "[DONE]"]


async def test_each_event_holds_all_text_so_far(stack: Stack) -> None:
    stack.say('He said "hé"', "\n\\ and", " left.")
    running = await stack.start_frontend()
    async with running.client() as client:
        whole = (await client.post("/generate", json={"text": "x"})).json()
        events = await events_of(client, STREAM)
        pieces = await events_of(client, PIECES)
    assert whole["text"] == 'He said "hé"\n\\ and left.'
    texts = [event.json["text"] for event in events]
    assert texts == sorted(texts, key=len)
    assert all(whole["text"].startswith(text) for text in texts)
    last = events[-1].json
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    assert last["meta_info"] == whole["meta_info"] | {"id": last["meta_info"]["id"]}
    assert "".join(event.json["text"] for event in pieces) == whole["text"]
    assert [i for event in pieces for i in event.json["output_ids"]] == whole["output_ids"]


def test_long_answers_have_fewer_events_of_all_text_so_far() -> None:
    so_far, sizes = SoFar(), []
    for _ in range(4096):
        so_far.add("x" * 256, [7])
        if so_far.is_due:
            so_far.note_sent()
            sizes.append(so_far.num_bytes)
    assert all(after - before <= 512 for before, after in pairwise(sizes[:50]))
    assert sum(size for size in sizes if size > 1 << 14) <= 33 * so_far.num_bytes
    assert all(after - before <= after // 32 + 512 for before, after in pairwise(sizes))


async def test_a_long_stream_ends_with_all_of_it_wherever_it_is_resumed(stack: Stack) -> None:
    stack.say(*(f"{idx:04} " + 2000 * "x" for idx in range(100)))
    running = await stack.start_frontend()
    async with running.client() as client:
        whole = (await client.post("/generate", json={"text": "x"})).json()
        events = await events_of(client, STREAM)
        for event in events[:: max(1, len(events) // 4)]:
            again = await resumed(client, event)
            assert (again or [event])[-1].json["text"] == whole["text"]
    assert events[-1].json["text"] == whole["text"]
    assert len(whole["text"]) == 100 * 2005


@pytest.mark.parametrize("logprobs", [{}, {"return_logprob": True, "logprob_start_len": 0}])
async def test_another_frontend_goes_on_with_all_of_it(
    stack: Stack, logprobs: dict[str, Any]
) -> None:
    stack.say("Hé", "llo", " wor", "ld")
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        events = await events_of(client, {**STREAM, **logprobs, "text": ["x", "y"]})
        whole = await other.get(f"/v1/streams/{events[0].event_id.partition('.')[0]}?stream=false")
        for idx, event in enumerate(events):
            again = await resumed(other, event)
            assert all(seen.json in [each.json for each in events] for seen in again[-1:])
            latest = {item["index"]: item for item in (e.json for e in events[: idx + 1])}
            latest |= {item["index"]: item for item in (e.json for e in again)}
            assert [latest[i] for i in sorted(latest)] == whole.json()


async def test_over_nats_each_event_holds_what_is_new(stack: Stack) -> None:
    await stack.start_frontend()
    messages = await ask_stream(stack, "generate", STREAM)
    texts = [json.loads(message.data)["text"] for message in messages if message.data]
    assert "".join(texts) == "Hello, world!"
    refused = await ask(stack, "generate", STREAM | {"incremental_streaming_output": False})
    assert json.loads(refused.data)["error"]["param"] == "incremental_streaming_output"
    again = await ask(stack, "generate", {"text": "x", "incremental_streaming_output": False})
    assert json.loads(again.data)["text"] == "Hello, world!"


async def test_each_prompt_has_its_sampling_params(stack: Stack) -> None:
    running = await stack.start_frontend()
    params = [
        {"max_new_tokens": 7, "temperature": 0.5, "stop": "a", "n": 2},
        {"max_tokens": 9, "sampling_seed": 3, "n": 2},
    ]
    async with running.client() as client:
        answer = await client.post(
            "/generate", json={"text": ["x", "y"], "sampling_params": params}
        )
        assert [item["index"] for item in answer.json()] == [0, 1, 2, 3]
        one = await client.post("/generate", json={"text": "x", "sampling_params": params[:1]})
        assert len(one.json()) == 2
    requests = [run.request for run in stack.backend.runs.values()][:4]
    by_choice = sorted(requests, key=lambda request: request.reply.choice_idx)
    assert [request.sampling.max_tokens for request in by_choice] == [7, 7, 9, 9]
    assert [request.sampling.temperature for request in by_choice[:2]] == [0.5, 0.5]
    assert [request.sampling.seed for request in by_choice[2:]] == [3, 4]
    assert [request.text.stop for request in by_choice] == [("a",), ("a",), (), ()]


WRONG_LISTS: list[tuple[list[Any], str, str]] = [
    ([{}], "sampling_params", "1 objects for 2 prompts"),
    ([], "sampling_params", "must be an object"),
    ([{}, 7], "sampling_params", "must be an object"),
    ([{}] * 257, "sampling_params", "at most 256"),
    ([{}, {"n": 2}], "sampling_params", "another 'n'"),
    ([{}, {"cache_salt": "a"}], "sampling_params", "another 'cache_salt'"),
    ([{}, {"prompt_logprobs": 1}], "sampling_params", "another 'logprobs'"),
    ([{}, {"temperature": 3}], "temperature", "3"),
    ([{}, {"mirostat": 2}], "mirostat", "mirostat"),
]


async def test_wrong_lists_are_refused(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        for params, param, word in WRONG_LISTS:
            body = {"text": ["x", "y"], "sampling_params": params}
            answer = await client.post("/generate", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), params
            assert word in error["message"]


async def test_many_grammars_in_one_body_are_refused(stack: Stack) -> None:
    running = await stack.start_frontend()
    params = [{"regex": "a" * (i + 1)} for i in range(17)]
    async with running.client() as client:
        answer = await client.post(
            "/generate", json={"text": ["x"] * 17, "sampling_params": params}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "regex")
    assert "different for 17 prompts, at most 16" in error["message"]


async def test_each_prompt_has_its_name_and_is_aborted_by_it(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.answer(lambda request: Script(["a", "b"], gate=gate))
    running = await stack.start_frontend(api_key=("alpha", "beta"))
    body = STREAM | {"text": ["x", "y"], "rid": ["first", "second"]}
    stranger = {"authorization": "Bearer beta"}
    async with running.client(headers={"authorization": "Bearer alpha"}) as client:
        async with client.stream("POST", "/generate", json=body) as response:
            rid = {"rid": "second"}
            refused = await client.post("/abort_request", json=rid, headers=stranger)
            assert refused.status_code == 404
            ended = await client.post("/abort_request", json=rid)
            assert ended.json() == {"rid": "second", "num_aborted": 1}
            assert b"cancel" in await response.aread()
        gate.set()
        answer = (await client.post("/generate", json=body | {"stream": False})).json()
        assert [item["meta_info"]["id"] for item in answer] == ["first", "second"]
        named = (await client.post("/generate", json={"text": "x", "rid": "mine"})).json()
        assert named["meta_info"]["id"] == "mine"
        for names in (["a"], ["a", "a"], ["a", 7], ["a", ""], ["a", "x" * 513]):
            wrong = await client.post("/generate", json=body | {"rid": names})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "rid")


async def test_hidden_states_come_with_the_end(stack: Stack) -> None:
    """Of the prompt's two tokens (the first one is added), then of each of the output but the
    last one.
    """
    stack.answer(
        lambda _: Script(
            ["a", "b"], Finish(FinishReason.LENGTH, embedding=struct.pack("<6f", *range(6)))
        )
    )
    card = msgspec.structs.replace(stack.card, embedding=EmbeddingCard(2))
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await cards.put(card.pool, encode(card))
    running = await stack.start_frontend()
    body = {"text": "x", "return_hidden_states": True, "max_new_tokens": 2}
    states = [[[0.0, 1.0], [2.0, 3.0]], [4.0, 5.0]]
    async with running.client() as client:
        whole = (await client.post("/generate", json=body)).json()
        assert whole["meta_info"]["hidden_states"] == states
        events = await events_of(client, {**body, "stream": True})
        assert events[-1].json["meta_info"]["hidden_states"] == states
        assert all("hidden_states" not in event.json["meta_info"] for event in events[:-1])
        [*_, run] = stack.backend.runs.values()
        assert run.request.sampling.hidden_states
        assert run.request.level >= 4
        for fields in ({"stop": "x"}, {"return_logprob": True}):
            refused = await client.post("/generate", json={**body, **fields})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "return_hidden_states"
