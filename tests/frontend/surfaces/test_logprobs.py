"""Logprobs as each API shows them, whole, streamed, and resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.text.token_texts import TokenTexts
from shared.protocol.request import GenerateRequest
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.sse import sse_events
from tests.frontend.tiny_model import BOS, make_tokenizer
from worker.engine.scripted.scripted_logprobs import scripted_logprobs

pytestmark = pytest.mark.integration

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "logprobs": True,
    "top_logprobs": 2,
}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "logprobs": 2, "max_tokens": 3}
TEXTS = TokenTexts(make_tokenizer())
OUTPUT_IDS = [65, 66, 67]  # what the fake says, whatever the text


def logprob(token_id: int, position: int) -> float:
    """As the fake makes it up: its alternatives are the ids that follow, each less likely by 1."""
    return -0.25 - (token_id + position) % 8 / 4


def chat_item(token_id: int, value: float) -> dict[str, Any]:
    data = TEXTS.bytes_of(token_id)
    return {"token": TEXTS.text_of(token_id), "logprob": value, "bytes": list(data)}


def chat_content(token_id: int, position: int, num_top: int = 2) -> dict[str, Any]:
    value = logprob(token_id, position)
    top = [chat_item(token_id + idx, value - idx) for idx in range(num_top)]
    return chat_item(token_id, value) | {"top_logprobs": top}


CHAT_CONTENT = [chat_content(token_id, position) for position, token_id in enumerate(OUTPUT_IDS)]


def test_the_fake_makes_them_up_as_said() -> None:
    assert scripted_logprobs(65, 0, 2) != scripted_logprobs(65, 1, 2)


async def test_chat(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=CHAT | {"n": 2})
        for choice in answer.json()["choices"]:
            assert choice["logprobs"] == {"content": CHAT_CONTENT, "refusal": None}
        answer = await client.post("/v1/chat/completions", json=CHAT | {"top_logprobs": 0})
        content = answer.json()["choices"][0]["logprobs"]["content"]
        assert content == [item | {"top_logprobs": []} for item in CHAT_CONTENT]
        without = CHAT | {"logprobs": False, "top_logprobs": 0}
        answer = await client.post("/v1/chat/completions", json=without)
        assert answer.json()["choices"][0]["logprobs"] is None


async def test_a_chat_stream_resumes_behind_any_event(stack: Stack) -> None:
    stack.say("a", "é", "c", twice=True)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        async with client.stream(
            "POST", "/v1/chat/completions", json=CHAT | {"stream": True}
        ) as response:
            events = [event async for event in sse_events(response)]
        assert content_of(events) == CHAT_CONTENT
        rid = events[0].event_id.split(".")[0]
        for num_seen in range(1, len(events)):
            headers = {"Last-Event-ID": events[num_seen - 1].event_id}
            async with other.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
                rest = [event async for event in sse_events(response)]
            assert content_of(events[:num_seen]) + content_of(rest) == CHAT_CONTENT


def content_of(events: list[Any]) -> list[Any]:
    choices = [event.json["choices"][0] for event in events if event.data != "[DONE]"]
    return [
        item for choice in choices if choice["logprobs"] for item in choice["logprobs"]["content"]
    ]


async def test_many_tokens_at_once_are_told_in_several_events(stack: Stack) -> None:
    """As after a takeover: one chunk of 600 tokens, of which only the last has text."""

    def script(request: GenerateRequest) -> Script:
        return Script(["x"] * 600, lose=frozenset(range(599)))

    stack.answer(script)
    running = await stack.start_frontend()
    async with running.client() as client:
        body = CHAT | {"stream": True, "max_tokens": 400}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            events = [event async for event in sse_events(response)]
        expected = [chat_content(65 + idx % 26, idx) for idx in range(600)]
        assert content_of(events) == expected
        told = [event for event in events if event.data != "[DONE]" and content_of([event])]
        assert [len(content_of([event])) for event in told] == [256, 256, 88]
        rid = events[0].event_id.split(".")[0]
        for num_seen, num_emitted in ((1, 256), (2, 512)):
            headers = {"Last-Event-ID": told[num_seen - 1].event_id}
            async with client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
                rest = [event async for event in sse_events(response)]
            assert content_of(rest) == expected[num_emitted:]
            assert "".join(event.text for event in rest) == "x" * 600


async def test_completions(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.post("/v1/completions", json=COMPLETION)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [TEXTS.text_of(token_id) for token_id in OUTPUT_IDS]
    values = [logprob(token_id, idx) for idx, token_id in enumerate(OUTPUT_IDS)]
    assert logprobs["token_logprobs"] == values
    assert logprobs["top_logprobs"] == [
        {TEXTS.text_of(token_id + idx): value - idx for idx in range(2)}
        for token_id, value in zip(OUTPUT_IDS, values, strict=True)
    ]
    assert logprobs["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_tells_the_prompt_first(stack: Stack, stream: bool) -> None:
    stack.say("abc")
    running = await stack.start_frontend()
    body = COMPLETION | {"echo": True, "max_tokens": 1, "stream": stream}
    choices = []
    async with running.client() as client:
        if stream:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                events = [event async for event in sse_events(response)]
            choices = [event.json["choices"][0] for event in events if event.data != "[DONE]"]
        else:
            choices = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "Hiabc"
    (logprobs,) = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    h, i = make_tokenizer().encode("Hi", add_special_tokens=False).ids
    assert logprobs["tokens"] == ["<s>", "H", "i", TEXTS.text_of(65)]
    assert logprobs["token_logprobs"] == [None, logprob(h, 1), logprob(i, 2), logprob(65, 0)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_scored_without_output(stack: Stack, stream: bool) -> None:
    stack.say()
    running = await stack.start_frontend()
    body = COMPLETION | {
        "prompt": ["Hi", "ab"],
        "echo": True,
        "max_tokens": 0,
        "logprobs": 1,
        "stream": stream,
    }
    async with running.client() as client:
        if stream:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                events = [event async for event in sse_events(response)]
            choices = [event.json["choices"][0] for event in events if event.data != "[DONE]"]
        else:
            choices = (await client.post("/v1/completions", json=body)).json()["choices"]
    tokens = {
        choice["index"]: choice["logprobs"]["tokens"] for choice in choices if choice["logprobs"]
    }
    assert tokens == {0: ["<s>", "H", "i"], 1: ["<s>", "a", "b"]}
    assert {choice["finish_reason"] for choice in choices} - {None} == {"stop"}


async def test_prompt_logprobs_of_vllm(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        body = {"model": "tiny", "prompt": "Hi", "prompt_logprobs": 1}
        answer = (await client.post("/v1/completions", json=body)).json()
        h, i = make_tokenizer().encode("Hi", add_special_tokens=False).ids
        expected = [
            None,
            {str(h): {"logprob": logprob(h, 1), "rank": 1, "decoded_token": "H"}},
            {str(i): {"logprob": logprob(i, 2), "rank": 1, "decoded_token": "i"}},
        ]
        assert answer["choices"][0]["prompt_logprobs"] == expected
        assert answer["choices"][0]["logprobs"] is None
        chat = {key: CHAT[key] for key in ("model", "messages")} | {"prompt_logprobs": 0}
        answer = (await client.post("/v1/chat/completions", json=chat)).json()
        assert answer["prompt_logprobs"][0] is None
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


async def test_the_native_api(stack: Stack) -> None:
    running = await stack.start_frontend()
    body: dict[str, Any] = {
        "text": "Hi",
        "return_logprob": True,
        "top_logprobs_num": 1,
        "logprob_start_len": 0,
    }
    async with running.client() as client:
        meta = (await client.post("/generate", json=body)).json()["meta_info"]
        body |= {"stream": True}
        async with client.stream("POST", "/generate", json=body) as response:
            grown = [event.json async for event in sse_events(response) if event.data != "[DONE]"]
        body |= {"incremental_streaming_output": True}
        async with client.stream("POST", "/generate", json=body) as response:
            events = [event.json async for event in sse_events(response) if event.data != "[DONE]"]
    values = [
        [logprob(token_id, idx), token_id, TEXTS.text_of(token_id)]
        for idx, token_id in enumerate(OUTPUT_IDS)
    ]
    assert meta["output_token_logprobs"] == values
    assert meta["output_top_logprobs"] == [[value] for value in values]
    assert meta["input_token_logprobs"][0] == [None, BOS, "<s>"]
    assert meta["input_top_logprobs"][0] is None
    assert len(meta["input_token_logprobs"]) == 3
    streamed = [each for event in events for each in event["meta_info"]["output_token_logprobs"]]
    assert streamed == values
    with_prompt = [event for event in events if "input_token_logprobs" in event["meta_info"]]
    assert with_prompt == events[:1]
    assert grown[-1]["meta_info"] == meta | {"id": grown[-1]["meta_info"]["id"]}
    for event in grown:
        told = event["meta_info"]["output_token_logprobs"]
        assert told == values[: len(told)]
        assert event["meta_info"]["input_top_logprobs"] == meta["input_top_logprobs"]


async def test_tokens_that_a_request_names(stack: Stack) -> None:
    running = await stack.start_frontend()
    named = [OUTPUT_IDS[0] + 3, OUTPUT_IDS[0]]
    body: dict[str, Any] = {
        "text": "Hi",
        "return_logprob": True,
        "top_logprobs_num": 1,
        "token_ids_logprob": named,
        "logprob_start_len": 1,
    }
    async with running.client() as client:
        meta = (await client.post("/generate", json=body)).json()["meta_info"]
        chat = {key: CHAT[key] for key in ("model", "messages")}
        chat |= {"logprobs": True, "logprob_token_ids": named}
        answer = (await client.post("/v1/chat/completions", json=chat)).json()
    first, output = logprob(OUTPUT_IDS[0], 0), meta["output_token_ids_logprobs"]
    values = [[first - 3, named[0], TEXTS.text_of(named[0])]]
    values.append([first, named[1], TEXTS.text_of(named[1])])
    assert output[0] == values
    assert [[each[1] for each in of_token] for of_token in output] == [named] * len(OUTPUT_IDS)
    assert meta["output_top_logprobs"][0] == [[first, OUTPUT_IDS[0], TEXTS.text_of(OUTPUT_IDS[0])]]
    inputs = meta["input_token_logprobs"]
    assert [text for _, _, text in inputs] == ["H", "i"]
    assert inputs[0][0] is None
    assert meta["input_token_ids_logprobs"][0] is None
    assert [each[1] for each in meta["input_token_ids_logprobs"][1]] == named
    told = answer["choices"][0]["logprobs"]["content"]
    assert [[each["token"] for each in of_token["top_logprobs"]] for of_token in told] == [
        [TEXTS.text_of(token_id) for token_id in named]
    ] * len(told)


async def test_over_nats(stack: Stack) -> None:
    await stack.start_frontend()
    answer = json.loads((await ask(stack, "chat.completions", CHAT)).data)
    assert answer["choices"][0]["logprobs"]["content"] == CHAT_CONTENT
    messages = await ask_stream(stack, "chat.completions", CHAT | {"stream": True})
    choices = [json.loads(message.data)["choices"][0] for message in messages if message.data]
    content = [
        item for choice in choices if choice["logprobs"] for item in choice["logprobs"]["content"]
    ]
    assert content == CHAT_CONTENT
