"""Ollama's API: the bodies that its clients send, and the lines that they read."""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64encode
from typing import Any

import httpx
import msgspec
import pytest

from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.embeddings.embedding_answer import OllamaEmbeddings
from frontend.surfaces.ollama.conversation import OllamaTurn, conversation_of
from frontend.surfaces.ollama.ollama_answer import (
    OllamaChat,
    OllamaError,
    OllamaGenerated,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from frontend.surfaces.ollama.requests import OllamaChats, OllamaCompletions
from shared.errors import RequestError
from shared.protocol.finish import Finish, FinishReason, RunFacts
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.reply import Surface
from shared.protocol.sealed_replies import unseal
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.fields.test_validation import requests_of
from tests.frontend.images.test_images import make_chats
from tests.frontend.seeing_model import image_bytes, make_image
from tests.frontend.surfaces.test_embeddings import put_card
from tests.frontend.surfaces.test_tools import CHATML_TOOLS, STYLES, TEXT, TOOLS, pieces
from tests.frontend.tiny_model import make_tokenizer
from tests.frontend.told_answers import check_answer

HI = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "tiny:latest", "messages": HI}
GENERATE: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}
RUN = RunFacts(("w",), 0.5, 0.25, 1.5)


async def lines_of(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    async with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["x-request-id"]
        return [json.loads(line) async for line in response.aiter_lines()]


def said(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together from a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        for name, value in line["message"].items():
            if name != "role":
                message[name] = message[name] + value if name in message else value
    return without_ids(message)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Those of calls are made of the request's."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}


@pytest.fixture
async def running(stack: Stack) -> RunningFrontend:
    return await stack.start_frontend(**STYLES, api_key=("alpha",))


@pytest.fixture
def key() -> dict[str, str]:
    return {"authorization": "Bearer alpha"}


@pytest.mark.integration
async def test_a_chat_and_its_stream_say_the_same(
    stack: Stack, running: RunningFrontend, key: dict[str, str]
) -> None:
    stack.say(*pieces(TEXT), finish=Finish(FinishReason.STOP, run=RUN))
    body = {**CHAT, "tools": TOOLS, "think": True, "keep_alive": "5m", "options": {"num_ctx": 9}}
    async with running.client(headers=key) as http:
        lines = await lines_of(http, "/api/chat", body)
        answer = await http.post("/api/chat", json={**body, "stream": False})
        whole = answer.json()
        again = await http.get(f"/v1/streams/{answer.headers['x-request-id']}?stream=false")
        rid = answer.headers["x-request-id"]
        refused = await http.get(
            f"/v1/streams/{rid}", headers={"last-event-id": f"{rid}.0.0.00000000"}
        )
        assert "have no ids" in refused.json()["error"]["message"]
    for line in [*lines, whole]:
        check_answer(OllamaChat, line)
        assert line["model"] == "tiny"
    assert [line["done"] for line in lines] == [*[False] * (len(lines) - 1), True]
    assert whole["message"] == again.json()["message"]
    assert without_ids(whole["message"]) == said(lines)
    weather, now = said(lines)["tool_calls"]
    assert weather == {"index": 0, "name": "get_weather", "arguments": {"city": "Osló\n🙂"}}
    assert (now["name"], now["arguments"]) == ("now", {})
    assert (whole["message"]["thinking"], whole["message"]["content"]) == ("Osló 🙂?", "I look.")
    for end in (lines[-1], whole, again.json()):
        assert end["done_reason"] == "stop"
        assert (end["prompt_eval_duration"], end["eval_duration"]) == (250_000_000, 1_500_000_000)
        assert end["eval_count"] == len(pieces(TEXT))
        assert end["prompt_eval_count"] == whole["prompt_eval_count"] > 0
    assert again.json()["total_duration"] == 2_250_000_000
    assert 0 < whole["total_duration"] < 60e9


@pytest.mark.integration
async def test_generate_and_embed(stack: Stack, key: dict[str, str]) -> None:
    await put_card(stack, embedding=EmbeddingCard(2, normalize=False))
    running = await stack.start_frontend(api_key=("alpha",))
    stack.say("Hel", "lo", finish=Finish(FinishReason.LENGTH))
    async with running.client(headers=key) as http:
        lines = await lines_of(http, "/api/generate", {**GENERATE, "system": "Be kind."})
        whole = (await http.post("/api/generate", json={**GENERATE, "stream": False})).json()
        raw = {**GENERATE, "raw": True, "stream": False, "options": {"num_predict": 5}}
        assert (await http.post("/api/generate", json=raw)).json()["response"] == "Hello"
        for line in [*lines, whole]:
            check_answer(OllamaGenerated, line)
        assert "".join(line["response"] for line in lines) == whole["response"] == "Hello"
        assert lines[-1]["done_reason"] == "length"
        first, _, last = stack.backend.runs.values()
        assert unseal(first.reply).surface is Surface.OLLAMA_GENERATE
        assert len(make_tokenizer().encode("Hi").ids) == unseal(last.reply).num_prompt_tokens
        assert last.request.sampling.max_tokens == 5
        vector = Finish(FinishReason.STOP, embedding=struct.pack("<2f", 1, 0.5))
        stack.say(finish=vector)
        body = {"model": "tiny", "input": ["a", "b" * 10_000], "options": {}}
        answer = await http.post("/api/embed", json=body)
        assert answer.status_code == 200, answer.text
        embedded = answer.json()
        check_answer(OllamaEmbeddings, embedded)
        assert embedded["embeddings"] == [[1, 0.5], [1, 0.5]]
        rid = answer.headers["x-request-id"]
        again = await http.get(f"/v1/streams/{rid}?stream=false")
        assert again.json()["embeddings"] == embedded["embeddings"]
        assert "one piece" in (await http.get(f"/v1/streams/{rid}")).json()["error"]["message"]
        long = await http.post("/api/embed", json={**body, "truncate": False})
        assert (long.status_code, long.json()["code"]) == (400, "context_length_exceeded")


@pytest.mark.integration
async def test_what_is_served_is_shown(
    stack: Stack, running: RunningFrontend, key: dict[str, str]
) -> None:
    async with running.client(headers=key) as http:
        tags = (await http.get("/api/tags")).json()
        check_answer(OllamaTags, tags)
        assert [model["model"] for model in tags["models"]] == ["tiny:latest"]
        for name in ({"model": "tiny"}, {"model": "tiny:latest"}, {"name": "tiny"}):
            shown = (await http.post("/api/show", json={**name, "verbose": True})).json()
            check_answer(OllamaShown, shown)
            assert "completion" in shown["capabilities"]
            length = shown["model_info"]["jetflock.context_length"]
            assert length == stack.card.max_context_len
        running_now = (await http.get("/api/ps")).json()
        check_answer(OllamaRunning, running_now)
        assert running_now["models"] == []  # the fake has no heartbeat
        version = (await http.get("/api/version")).json()
        check_answer(OllamaVersion, version)
        assert all(part.isdecimal() for part in version["version"].split("."))
        # By these Ollama loads a model, or unloads it: nothing is generated.
        for path, body in (
            ("/api/chat", {**CHAT, "messages": []}),
            ("/api/generate", {"model": "tiny", "keep_alive": 0}),
        ):
            loaded = (await http.post(path, json=body)).json()
            assert (loaded["done"], loaded["done_reason"]) == (True, "load")
            unknown = await http.post(path, json={**body, "model": "other"})
            assert unknown.status_code == 404
        assert not stack.backend.runs


@pytest.mark.integration
async def test_errors_have_ollamas_shape(
    stack: Stack, running: RunningFrontend, key: dict[str, str]
) -> None:
    async with running.client(headers=key) as http:
        for path in ("/api/chat", "/api/generate", "/api/embed", "/api/show"):
            broken = await http.post(path, content=b"{")
            check_answer(OllamaError, broken.json())
            assert (broken.status_code, broken.json()["code"]) == (400, "invalid_json")
            nobody = await http.post(path, json={}, headers={"authorization": "Bearer no"})
            assert (nobody.status_code, nobody.json()["code"]) == (401, "invalid_api_key")
        unknown = await http.post("/api/chat", json={**CHAT, "model": "other:latest"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")
        wrong = await http.post("/api/chat", json={**CHAT, "options": {"temperature": 9}})
        assert wrong.json()["param"] == "options.temperature"
        assert "'options.temperature' is 9" in wrong.json()["error"]
        stack.say("a", "b", finish=Finish(FinishReason.ERROR, message="broken"))
        lines = await lines_of(http, "/api/chat", CHAT)
        assert lines[-1]["error"] == "broken"
        whole = await http.post("/api/chat", json={**CHAT, "stream": False})
        assert (whole.status_code, whole.json()["error"]) == (500, "broken")


@pytest.mark.integration
async def test_silence_is_filled_with_blanks_and_a_key_joins(
    stack: Stack, key: dict[str, str]
) -> None:
    gate = asyncio.Event()
    stack.say("a", "b", gate=gate)
    running = await stack.start_frontend(ping_interval_s=0.1)
    async with running.client(headers={"idempotency-key": "once"}) as http:
        received = b""
        async with http.stream("POST", "/api/chat", json=CHAT) as response:
            async for data in response.aiter_raw():
                received += data
                if received.endswith(b"   "):
                    gate.set()
        lines = [json.loads(line) for line in received.splitlines()]
        assert said(lines)["content"] == "ab"
        assert said(await lines_of(http, "/api/chat", CHAT))["content"] == "ab"
    assert len(stack.backend.runs) == 1


def test_calls_and_results_find_each_other() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [
                {"function": {"name": "f", "arguments": {"city": "Oslo"}}},
                {"function": {"name": "g", "arguments": {}}},
                {"id": "mine", "function": {"name": "h", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "tool_call_id": "mine", "content": "3"},
    ]
    made = conversation_of(msgspec.convert(messages, list[OllamaTurn])).messages
    assert made[2]["reasoning_content"] == "hm"
    assert [call["id"] for call in made[2]["tool_calls"]] == ["call_0", "call_1", "mine"]
    assert [message["tool_call_id"] for message in made[3:]] == ["call_1", "call_0", "mine"]


async def chat_job(template: str = CHATML_TOOLS, **fields: Any) -> Job:
    directory = make_directory(chat_template=template, max_context_len=4096)
    chats = OllamaChats(directory, AllRequests(directory).chat)
    return await chats.job({**CHAT, **fields}, Caller())


async def generate_job(**fields: Any) -> Job:
    directory = make_directory(chat_template=CHATML_TOOLS, max_context_len=4096)
    open_ended = CompletionRequests(directory, PromptEncoder(), default_max_tokens=None)
    completions = OllamaCompletions(directory, AllRequests(directory).chat, open_ended)
    return await completions.job({**GENERATE, **fields}, Caller())


async def test_options_are_sampling_fields() -> None:
    options = {
        "num_predict": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 3,
        "stop": ["\n"], "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 0.5,
        "frequency_penalty": 0.25, "num_ctx": 2048, "num_thread": 8, "mirostat": 0,
        "typical_p": 1.0,
    }  # fmt: skip
    sampling = (await chat_job(options=options, format="json")).sampling
    params = sampling.params
    assert (sampling.max_tokens, params.seed, sampling.text.stop) == (7, 3, ("\n",))
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 20, 0.1)
    assert (params.repetition_penalty, params.presence_penalty) == (1.2, 0.5)
    assert params.frequency_penalty == 0.25
    assert params.grammar is not None
    assert params.penalty_last_n == -1
    near = (await chat_job(options={"repeat_penalty": 1.1, "repeat_last_n": 64})).sampling.params
    assert (near.repetition_penalty, near.penalty_last_n) == (1.1, 64)
    off = {**options, "repeat_last_n": 0, "num_predict": -1, "seed": -1}
    sampling = (await generate_job(options=off, raw=True)).sampling
    assert (sampling.params.repetition_penalty, sampling.params.presence_penalty) == (1.0, 0.0)
    assert sampling.max_tokens is None


async def test_thinking_is_asked_for_or_left_out() -> None:
    plain = await chat_job(CHATML_TOOLS.replace("</think>", "").replace("<think>", ""))
    assert plain.answer is None
    loud, quiet = await chat_job(think=True), await chat_job(think=False)
    assert loud.answer is not None
    assert quiet.answer is not None
    assert (loud.answer.begins_in_reasoning, quiet.answer.hides_reasoning) == (True, True)
    with pytest.raises(RequestError, match="has no reasoning"):
        await chat_job(CHATML_TOOLS.replace("</think>", "").replace("<think>", ""), think=True)


async def test_an_answer_may_be_begun() -> None:
    begun = await chat_job(messages=[*HI, {"role": "assistant", "content": "Ho"}])
    prompt = make_tokenizer().decode(begun.prompts[0].token_ids, skip_special_tokens=False)
    assert prompt.endswith("Ho")


async def test_images_are_base64() -> None:
    chats = make_chats()
    ollama = OllamaChats(chats._models, chats)
    image = b64encode(image_bytes(make_image())).decode()
    message = {"role": "user", "content": "What?", "images": [image]}
    job = await ollama.job({**CHAT, "model": "tiny", "messages": [message]}, Caller())
    assert len(job.prompts[0].pixels) == 1
    message["images"] = [image, "%%"]
    with pytest.raises(RequestError, match=r"messages\[0\]\.images\[1\]"):
        await ollama.job({**CHAT, "model": "tiny", "messages": [message]}, Caller())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": None}, "model", "required"),
        ({"model": ":latest"}, "model", "required"),
        ({"messages": "x"}, "messages", "array"),
        ({"messages": ["x"]}, "messages[0]", "object"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content", "wrong type"),
        ({"messages": [{"role": "user", "images": "x"}]}, "messages[0].images", "array"),
        ({"messages": [{"role": "user", "images": [1]}]}, "messages[0].images[0]", "wrong type"),
        ({"tools": "x"}, "tools", "array"),
        ({"format": "xml"}, "format", "xml"),
        ({"format": {"$ref": "x"}}, "format", "references"),
        ({"think": "hard"}, "think", "hard"),
        ({"options": 1}, "options", "wrong type"),
        ({"options": {"num_predict": 0}}, "options.num_predict", "is 0"),
        ({"options": {"num_predict": 10_000}}, "options.num_predict", "10000"),
        ({"options": {"top_p": 2}}, "options.top_p", "is 2"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty", "is 0"),
        ({"options": {"temperature": "x"}}, "options.temperature", "wrong type"),
        ({"options": {"mirostat": 2}}, "options.mirostat", "not supported"),
        ({"options": {"repeat_last_n": -2}}, "options.repeat_last_n", "is -2"),
        ({"truncate": True}, "truncate", "not supported"),
    ],
)
async def test_what_is_wrong_is_named_as_it_was_sent(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        requests_of(await chat_job(**fields))
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": "x" * 5000, "raw": True}, "prompt"),
        ({"images": ["%%"]}, "images[0]"),
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "options": {"temperature": 9}}, "options.temperature"),
        ({"template": "x"}, "template"),
        ({"context": [1]}, "context"),
    ],
)
async def test_what_is_wrong_with_a_prompt_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        requests_of(await generate_job(**fields))
    assert caught.value.param == param
