"""Many conversations in one request, as vLLM has them; and `echo` of what a chat goes on with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.seeing_model import image_part
from tests.frontend.sse import sse_events
from tests.frontend.tiny_model import make_tokenizer

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


BODY: dict[str, Any] = {"model": "tiny", "messages": [[user("one")], [user("two"), user("too")]]}
SEEN = {"role": "user", "content": [image_part("data:image/png;base64,")]}
GO_ON = {
    "model": "tiny",
    "messages": [user("Say it."), {"role": "assistant", "content": "He said"}],
    "continue_final_message": True,
    "add_generation_prompt": False,
    "echo": True,
}


def repeated(request: GenerateRequest) -> Script:
    """The fake says what it was asked last."""
    ids = unpack_token_ids(request.prompt_ids)
    text = make_tokenizer().decode(ids, skip_special_tokens=False)
    return Script([word for word in ("one", "too") if word in text])


async def test_each_conversation_has_a_choice(stack: Stack) -> None:
    stack.answer(repeated)
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = (await client.post(BATCH, json=BODY)).json()
        async with client.stream("POST", BATCH, json=BODY | {"stream": True}) as response:
            events = [event async for event in sse_events(response) if event.data != "[DONE]"]
        alone = (await client.post(CHAT, json=BODY | {"messages": BODY["messages"][1]})).json()
    told = [(each["index"], each["message"]["content"]) for each in answer["choices"]]
    assert told == [(0, "one"), (1, "too")]
    assert answer["object"] == "chat.completion"
    assert answer["choices"][1]["message"] == alone["choices"][0]["message"]
    assert answer["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"]
    texts = {0: "", 1: ""}
    for event in events:
        for choice in event.json["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "one", 1: "too"}
    over_nats = json.loads((await ask(stack, "chat.completions.batch", BODY)).data)
    assert over_nats["choices"] == answer["choices"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [user("flat")]}, "messages[0]"),
    ({"messages": [[user("a")], []]}, "messages[1]"),
    ({"messages": [[user("a")], [user("b"), {"role": "x"}]]}, "messages[1][1].role"),
    ({"messages": [[user("a")]] * 257}, "messages"),
    ({"messages": [[user("a")] * 4000, [user("a")] * 97]}, "messages"),
    ({"n": 2}, "n"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"return_token_ids": True}, "return_token_ids"),
    ({"model": None}, "model"),
    ({"messages": [[user("a")], [SEEN]]}, "messages[1][0].content[0]"),
]


async def test_what_is_wrong_is_refused_by_its_place(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        for fields, param in WRONG:
            answer = await client.post(BATCH, json=BODY | fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), fields
        flat = await client.post(CHAT, json=BODY)
        assert (flat.status_code, flat.json()["error"]["param"]) == (400, "messages[0]")


async def test_echo_repeats_what_a_chat_goes_on_with(stack: Stack) -> None:
    stack.say(" hel", "lo.")
    running = await stack.start_frontend()
    async with running.client() as client:
        whole = (await client.post(CHAT, json=GO_ON)).json()
        async with client.stream("POST", CHAT, json=GO_ON | {"stream": True, "n": 2}) as response:
            events = [event async for event in sse_events(response) if event.data != "[DONE]"]
        rid, headers = events[0].event_id.partition(".")[0], {"Last-Event-ID": events[0].event_id}
        async with client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
            rest = [event async for event in sse_events(response) if event.data != "[DONE]"]
        asked = GO_ON | {"messages": [user("Hi")], "continue_final_message": False}
        plain = (await client.post(CHAT, json=asked)).json()
        long = {"role": "assistant", "content": "x " * 40_000}
        refused = await client.post(CHAT, json=GO_ON | {"messages": [user("Hi"), long]})
    assert whole["choices"][0]["message"]["content"] == "He said hello."
    texts = {0: "", 1: ""}
    for event in events:
        for choice in event.json["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "He said hello.", 1: "He said hello."}
    assert events[0].json["choices"][0]["delta"] == {"role": "assistant", "content": "He said"}
    assert "He said" not in "".join(event.data for event in rest)
    assert plain["choices"][0]["message"]["content"] == " hello."
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
