"""Fields of chat and completions beyond sampling: how prompts are read, and what answers tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from shared.errors import RequestError
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.fake_backend import Script
from tests.frontend.fields.test_validation import (
    assert_refused,
    bytes_of,
    chat,
    chat_body,
    completion,
    completion_body,
    requests_of,
)
from tests.frontend.sse import SseEvent, sse_events
from tests.frontend.tiny_model import BOS, IM_START

IDS = [65, 66, 67]  # what the fake says


async def prompt_of(**fields: Any) -> list[int]:
    return unpack_token_ids((await completion(**fields))[0].prompt_ids)


async def test_special_tokens_as_asked() -> None:
    assert (await prompt_of())[0] == BOS
    assert BOS not in await prompt_of(add_special_tokens=False)
    assert (await prompt_of(prompt=[5, 6], add_special_tokens=True)) == [5, 6]
    of_chat = unpack_token_ids((await chat(add_special_tokens=True)).prompt_ids)
    assert of_chat[:2] == [BOS, IM_START]


async def test_a_prompt_is_cut_at_its_beginning() -> None:
    whole = await prompt_of(prompt="abcdef")
    assert await prompt_of(prompt="abcdef", truncate_prompt_tokens=3) == [BOS, *whole[-2:]]
    assert await prompt_of(prompt="abcdef", truncate_prompt_tokens=99) == whole
    assert await prompt_of(prompt="abcdef", truncate_prompt_tokens=2**70) == whole
    assert await prompt_of(prompt="abcdef", truncate_prompt_tokens=1) == [BOS]
    without = {"prompt": "abcdef", "add_special_tokens": False}
    assert await prompt_of(**without, truncate_prompt_tokens=3) == whole[-3:]
    assert await prompt_of(prompt=[1, 2, 3], truncate_prompt_tokens=2) == [2, 3]
    request = await chat(truncate_prompt_tokens=4)
    assert bytes_of(request) == b"ant\n"


async def test_a_prompt_is_cut_to_what_the_context_leaves() -> None:
    fields: dict[str, Any] = {"prompt": "x" * 600, "truncate_prompt_tokens": -1}
    assert len(await prompt_of(**fields)) == 512 - 16
    assert len(await prompt_of(**fields, max_tokens=100)) == 412
    messages = [{"role": "user", "content": "x" * 600}]
    request = await chat(messages=messages, truncate_prompt_tokens=-1, max_tokens=12)
    assert len(unpack_token_ids(request.prompt_ids)) == 500


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": "x"}, "truncate_prompt_tokens", "invalid_type"),
        ({"add_special_tokens": 1}, "add_special_tokens", "invalid_type"),
    ],
)
async def test_bad_values(fields: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("chat", chat_body(**fields), 400, param, code)
    await assert_refused("completions", completion_body(**fields), 400, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"best_of": 0}, "best_of", "invalid_value"),
        ({"best_of": 17}, "best_of", "invalid_value"),
        ({"best_of": 2, "n": 3}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        (
            {"echo": True, "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
            "invalid_value",
        ),
    ],
)
async def test_bad_values_of_completions(fields: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("completions", completion_body(**fields), 400, param, code)


async def test_what_only_chat_can_refuse() -> None:
    await assert_refused(
        "chat",
        chat_body(truncate_prompt_tokens=-1),
        400,
        "truncate_prompt_tokens",
        "invalid_value",
    )
    documents = [{"title": "a", "text": "b"}]
    await assert_refused("chat", chat_body(documents=documents), 400, "documents", "invalid_value")
    await assert_refused("chat", chat_body(best_of=2), 400, "best_of", "unsupported_parameter")


async def test_documents_reach_a_template_that_knows_them() -> None:
    template = "{% for d in documents %}[{{ d.text }}]{% endfor %}{{ messages[0].content }}"
    requests = AllRequests(make_directory(chat_template=template)).chat
    job = await requests.job(chat_body(documents=[{"text": "b"}, {"text": "c"}]), Caller())
    assert bytes_of(requests_of(job)[0]) == b"[b][c]Hi"


@pytest.mark.parametrize("name", ["return_token_ids", "add_special_tokens"])
async def test_the_native_api_refuses_them(name: str) -> None:
    value = name == "return_token_ids"
    await assert_refused("generate", {"text": "a", name: value}, 400, name, "unsupported_parameter")


async def test_ids_of_a_prompt_that_is_too_long_are_not_told() -> None:
    requests = AllRequests(make_directory("tiny", max_context_len=32_768)).completions
    job = await requests.job(completion_body(prompt=[1] * 16_385, return_token_ids=True), Caller())
    with pytest.raises(RequestError, match="16385") as caught:
        requests_of(job)
    assert caught.value.param == "return_token_ids"


async def test_special_tokens_need_no_spaces_between_them() -> None:
    model = await make_directory().model("tiny")
    assert await PromptEncoder().decode(Caller(), model, [BOS, IM_START, 65]) == "<s><|im_start|>b"


async def events_of(stack: Stack, path: str, body: dict[str, Any]) -> list[SseEvent]:
    running = await stack.start_frontend()
    async with (
        running.client() as client,
        client.stream("POST", path, json=body | {"stream": True}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        events = [event async for event in sse_events(response)]
    assert events.pop().data == "[DONE]"
    return events


async def whole_of(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()
    return data


@pytest.mark.integration
async def test_chat_tells_token_ids(stack: Stack) -> None:
    body = chat_body(return_token_ids=True, n=2)
    whole = await whole_of(stack, "/v1/chat/completions", body)
    (run, _) = stack.backend.runs.values()
    prompt_ids = unpack_token_ids(run.request.prompt_ids)
    assert whole["prompt_token_ids"] == prompt_ids
    assert [choice["token_ids"] for choice in whole["choices"]] == [IDS, IDS]
    events = [event.json for event in await events_of(stack, "/v1/chat/completions", body)]
    assert events[0]["prompt_token_ids"] == prompt_ids
    assert all("prompt_token_ids" not in event for event in events[1:])
    told: dict[int, list[int]] = {0: [], 1: []}
    for event in events[2:]:
        told[event["choices"][0]["index"]] += event["choices"][0]["token_ids"]
    assert told == {0: IDS, 1: IDS}


@pytest.mark.integration
async def test_completions_tell_token_ids_and_a_resumed_stream_the_rest(stack: Stack) -> None:
    body = completion_body(prompt=["ab", "c"], return_token_ids=True, echo=True)
    whole = await whole_of(stack, "/v1/completions", body)
    first, second = whole["choices"]
    assert (len(first["prompt_token_ids"]), len(second["prompt_token_ids"])) == (3, 2)
    assert first["token_ids"] == second["token_ids"] == IDS
    body = completion_body(return_token_ids=True)
    events = await events_of(stack, "/v1/completions", body)
    choices = [event.json["choices"][0] for event in events]
    assert (choices[0]["text"], choices[0]["token_ids"]) == ("", [])
    assert choices[0]["prompt_token_ids"][0] == BOS
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == IDS
    rid = events[0].event_id.split(".")[0]
    other = await stack.start_frontend()
    headers = {"Last-Event-ID": events[1].event_id}
    async with (
        other.client() as client,
        client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response,
    ):
        rest = [event async for event in sse_events(response)][:-1]
    resumed = [i for event in rest for i in event.json["choices"][0]["token_ids"]]
    assert choices[1]["token_ids"] + resumed == IDS
    async with other.client() as client:
        answer = (await client.get(f"/v1/streams/{rid}?stream=false")).json()
    assert answer["choices"][0]["prompt_token_ids"] == choices[0]["prompt_token_ids"]


@pytest.mark.integration
async def test_logprobs_name_tokens_by_their_ids(stack: Stack) -> None:
    body = completion_body(logprobs=1, return_tokens_as_token_ids=True)
    choice = (await whole_of(stack, "/v1/completions", body))["choices"][0]
    names = [f"token_id:{token_id}" for token_id in IDS]
    assert choice["logprobs"]["tokens"] == names
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [[name] for name in names]
    body = chat_body(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    for event in await events_of(stack, "/v1/chat/completions", body):
        for item in (event.json["choices"][0]["logprobs"] or {"content": []})["content"]:
            assert item["token"] == item["top_logprobs"][0]["token"] == names.pop(0)
            assert bytes(item["bytes"])
    assert not names


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["chat/completions", "completions"])
@pytest.mark.parametrize("is_included", [True, False])
async def test_usage_with_every_event(stack: Stack, kind: str, is_included: bool) -> None:
    options = {"include_usage": is_included, "continuous_usage_stats": True}
    fields = {"stream_options": options, "n": 2}
    body = chat_body(**fields) if kind.startswith("chat") else completion_body(**fields)
    events = [event.json for event in await events_of(stack, f"/v1/{kind}", body)]
    usages = [event["usage"] for event in events]
    told = [usage["completion_tokens"] for usage in usages]
    assert told == sorted(told)
    assert told[-1] == 2 * len(IDS)
    assert (events[-1]["choices"] == []) == is_included
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)


def five_choices(request: GenerateRequest) -> Script:
    """The fake makes shorter outputs likelier, token by token."""
    idx = request.reply.choice_idx
    return Script([f"{idx}"] + ["."] * (idx * 3 % 5))


@pytest.mark.integration
async def test_the_best_of_many_are_told(stack: Stack) -> None:
    stack.answer(five_choices)
    running = await stack.start_frontend()
    body = completion_body(n=2, best_of=5, logprobs=0)
    async with running.client() as client:
        answer = (await client.post("/v1/completions", json=body)).json()
        without = (await client.post("/v1/completions", json=body | {"logprobs": None})).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "0"), (1, "2.")]
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
    assert sums == sorted(sums, reverse=True)
    assert answer["usage"]["completion_tokens"] == 1 + 4 + 2 + 5 + 3
    assert [choice["text"] for choice in without["choices"]] == ["0", "2."]
    assert {json.dumps(choice["logprobs"]) for choice in without["choices"]} == {"null"}


@pytest.mark.integration
async def test_the_best_of_each_prompt_also_when_fetched_again(stack: Stack) -> None:
    stack.answer(five_choices)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    body = completion_body(prompt=["a", "b"], n=1, best_of=2)
    async with first.client() as client, second.client() as other:
        answer = await client.post("/v1/completions", json=body)
        rid = answer.headers["x-request-id"]
        again = await other.get(f"/v1/streams/{rid}?stream=false")
        streamed = await other.get(f"/v1/streams/{rid}")
    assert [(c["index"], c["text"]) for c in answer.json()["choices"]] == [(0, "0"), (1, "2.")]
    assert again.json()["choices"] == answer.json()["choices"]
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
