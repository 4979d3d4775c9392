"""Tokens of prompts, as requests have them: counts, ids, strings, and back to text."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from frontend.inference import tokenizing
from frontend.inference.tokenizing import Tokenizing
from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.surfaces.chat.chat_request import ChatRequests
from shared.errors import RequestError, RequestTooLarge
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, make_admission, make_directory, make_image_loader
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.surfaces.test_tools import CHATML_TOOLS, TOOLS
from tests.frontend.tiny_model import BOS, CHATML, IM_END, IM_START, make_tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def make_tokenizing(*names: str, chat_template: str | None = CHATML) -> Tokenizing:
    directory, encoder = make_directory(*names, chat_template=chat_template), PromptEncoder()
    return Tokenizing(
        directory,
        encoder,
        ChatRequests(directory, encoder, make_image_loader()),
        make_admission(),
    )


async def tokenized(**body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await make_tokenizing().tokenize(body, Caller()))
    return answer


def ids(text: str, **options: Any) -> list[int]:
    token_ids: list[int] = make_tokenizer().encode(text, **options).ids
    return token_ids


async def test_a_text_has_the_special_tokens_of_a_completion() -> None:
    answer = await tokenized(model="tiny", prompt="Hé!", return_token_strs=True)
    assert answer["tokens"] == ids("Hé!")
    assert answer["tokens"][0] == BOS
    assert answer["token_strs"] == ["<s>", "H", "Ã", "©", "!"]
    assert (answer["count"], answer["max_model_len"]) == (5, 512)
    plain = await tokenized(prompt="Hé!", add_special_tokens=False)
    assert plain["tokens"] == answer["tokens"][1:]
    assert plain["token_strs"] is None
    assert (await tokenized(prompt="", add_special_tokens=False))["tokens"] == []


async def test_a_chat_goes_through_its_template() -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo"
    begun = await tokenized(messages=MESSAGES, continue_final_message=True)
    assert begun["tokens"] == ids(text, add_special_tokens=False)
    closed = await tokenized(messages=MESSAGES, add_generation_prompt=False)
    assert closed["tokens"] == [*begun["tokens"], IM_END, *ids("\n", add_special_tokens=False)]
    opened = await tokenized(messages=MESSAGES, add_special_tokens=True)
    assert opened["tokens"][:2] == [BOS, IM_START]
    assert opened["tokens"][1:] == closed["tokens"] + ids(
        "<|im_start|>assistant\n", add_special_tokens=False
    )


async def test_a_template_is_applied_as_for_a_request() -> None:
    async def applied(**body: Any) -> str:
        raw = {"messages": MESSAGES, **body}
        answer = json.loads(await make_tokenizing().apply_template(raw, Caller()))
        assert list(answer) == ["prompt"]
        return str(answer["prompt"])

    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo"
    assert await applied(continue_final_message=True) == text
    closed = await applied(model="tiny", add_generation_prompt=False, temperature=0)
    assert closed == f"{text}<|im_end|>\n"
    assert await applied() == f"{closed}<|im_start|>assistant\n"
    for wrong, param in (
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"chat_template": "x"}, "chat_template"),
        ({"model": "other"}, "model"),
    ):
        with pytest.raises(RequestError) as caught:
            await applied(**wrong)
        assert caught.value.param == param


async def test_tools_count_as_the_template_tells_them() -> None:
    tokens = make_tokenizing(chat_template=CHATML_TOOLS)
    body = {"messages": MESSAGES[:1], "tools": TOOLS[:1]}
    with_tools = json.loads(await tokens.tokenize(body, Caller()))
    text = json.loads(await tokens.detokenize({"tokens": with_tools["tokens"]}, Caller()))["prompt"]
    assert json.dumps(TOOLS[0]) in text
    without = json.loads(await tokens.tokenize({**body, "tool_choice": "none"}, Caller()))
    assert without == json.loads(await tokens.tokenize({"messages": MESSAGES[:1]}, Caller()))
    assert without["count"] < with_tools["count"]


@pytest.mark.parametrize("text", ["", "Hé! \u00a0 <|im_start|>\n", "日本語 🐉", "\x00"])
async def test_detokenize_gives_the_text_back(text: str) -> None:
    tokens = make_tokenizing()
    token_ids = ids(text, add_special_tokens=False)
    assert json.loads(await tokens.detokenize({"tokens": token_ids}, Caller())) == {"prompt": text}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "one of 'prompt' and 'messages' is required"),
        ({"prompt": "x", "messages": MESSAGES}, "prompt", "exclude"),
        ({"prompt": "x", "tools": TOOLS[:1]}, "tools", "'tools' is of a chat"),
        ({"prompt": ["x"]}, "prompt", "wrong type"),
        ({"messages": []}, "messages", "at least one"),
        (
            {"messages": [{"role": "me", "content": "x"}]},
            "messages[0].role",
            '"me", must be one of',
        ),
        ({"messages": [{"role": {}, "content": "x"}]}, "messages[0].role", "wrong type"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice", "no 'tools'"),
        ({"prompt": "x", "chat_template": "x"}, "chat_template", "not supported"),
        ({"prompt": "x", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "not supported"),
        ({"prompt": "x", "model": "other"}, "model", "other"),
        ({"tokens": [1, 259]}, "tokens", "259"),
        ({"tokens": [-1]}, "tokens", "-1"),
        ({"tokens": "x"}, "tokens", "wrong type"),
        ({"tokens": None}, "tokens", "required"),
    ],
)
async def test_errors_name_field_and_value(body: dict[str, Any], param: str, words: str) -> None:
    tokens = make_tokenizing()
    call = tokens.detokenize if "tokens" in body else tokens.tokenize
    with pytest.raises(RequestError, match=words) as caught:
        await call(body, Caller())
    assert caught.value.param == param


async def test_a_model_must_be_named_when_there_are_two() -> None:
    tokens = make_tokenizing("a", "b")
    for call in (tokens.tokenize({"prompt": "x"}, Caller()), tokens.info(None)):
        with pytest.raises(RequestError, match="2 models are served"):
            await call
    assert json.loads(await tokens.info("b"))["model"] == "b"


async def test_long_texts_leave_the_event_loop_and_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens, text = make_tokenizing(), "x" * 5000
    threads: set[str] = set()
    work = tokenizing._tokenized

    def tokenized(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return work(*args)

    monkeypatch.setattr(tokenizing, "_tokenized", tokenized)
    body = {"prompt": text, "return_token_strs": True}
    assert json.loads(await tokens.tokenize(body, Caller()))["count"] == 5001
    assert all(name.startswith("encode") for name in threads)
    monkeypatch.setattr(tokenizing, "MIN_LIMIT", 5000)
    with pytest.raises(RequestTooLarge, match="'prompt' has 5001 tokens: at most 5000"):
        await tokens.tokenize(body, Caller())
    with pytest.raises(RequestTooLarge, match="'prompt' has more: at most 5000"):
        await tokens.tokenize({"prompt": text * 200}, Caller())
    with pytest.raises(RequestTooLarge, match="'messages' has more: at most 5000"):
        await tokens.tokenize({"messages": [{"role": "user", "content": text * 200}]}, Caller())
    with pytest.raises(RequestTooLarge, match="'tokens' has 5001 tokens: at most 5000"):
        await tokens.detokenize({"tokens": [5] * 5001}, Caller())


async def test_props_are_in_llama_cpps_words() -> None:
    props = json.loads(await make_tokenizing().props(None))
    assert props["chat_template"] == CHATML
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "<|im_end|>")
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 512
    assert (settings["params"]["temperature"], settings["params"]["repeat_penalty"]) == (1.0, 1.0)
    assert (props["model_alias"], props["modalities"]["vision"]) == ("tiny", False)
    assert json.loads(await make_tokenizing("a", "b").props("b"))["model_alias"] == "b"
    bare = json.loads(await make_tokenizing(chat_template=None).props(None))
    assert bare["chat_template"] == ""


async def test_info_tells_what_the_files_say() -> None:
    info = json.loads(await make_tokenizing().info(None))
    assert info["chat_template"] == CHATML
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<s>", "<|im_end|>", None)
    assert (info["max_model_len"], info["vocab_size"]) == (512, 259)
    assert info["tokenizer_class"] is None


CHATS: list[dict[str, Any]] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, "continue_final_message": True},
    {"messages": MESSAGES, "add_generation_prompt": False, "add_special_tokens": True},
    {"messages": MESSAGES[:1], "tools": TOOLS[:1]},
    {"messages": MESSAGES[:1], "tools": TOOLS[:1], "tool_choice": "none"},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "y" * 300}]}]},
]


@pytest.mark.integration
async def test_counts_are_those_of_requests(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as http:

        async def check(path: str, body: dict[str, Any]) -> None:
            counted = (await http.post("/tokenize", json={"model": "tiny", **body})).json()
            answer = (await http.post(path, json={"model": "tiny", **body})).json()
            rid = answer["id"].split("-", 1)[1]
            request = stack.backend.runs[rid].request
            assert counted["tokens"] == list(unpack_token_ids(request.prompt_ids))
            assert counted["count"] == answer["usage"]["prompt_tokens"]

        await asyncio.gather(*(check("/v1/chat/completions", body) for body in CHATS))
        await check("/v1/completions", {"prompt": "Hé!"})
        await check("/v1/completions", {"prompt": "Hé!", "add_special_tokens": False})


@pytest.mark.integration
async def test_http_and_nats_say_the_same(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("alpha",))
    key = {"Authorization": "Bearer alpha"}
    async with running.client(headers=key) as http:
        for name, body in (("tokenize", {"prompt": "Hi"}), ("detokenize", {"tokens": [40, 72]})):
            answer = await http.post(f"/{name}", json=body)
            assert answer.status_code == 200
            assert (await ask(stack, name, body, key)).data == answer.content
        info = await http.get("/v1/tokenizer_info", params={"model": "tiny"})
        assert (await http.get("/tokenizer_info")).content == info.content
        assert (await ask(stack, "tokenizer_info", {}, key)).data == info.content
        assert (await http.get("/tokenizer_info?model=other")).status_code == 404
    async with httpx.AsyncClient(base_url=running.url) as stranger:
        assert (await stranger.post("/tokenize", json={"prompt": "Hi"})).status_code == 401
        assert (await stranger.get("/tokenizer_info")).status_code == 401
    long = {"prompt": "é" * 65_000, "return_token_strs": True}  # each is two tokens
    large = await ask(stack, "tokenize", long, key)
    assert (large.headers or {})["Nats-Service-Error-Code"] == "413"
    assert "over HTTP" in json.loads(large.data)["error"]["message"]


async def test_effort_counts_where_the_template_knows_it() -> None:
    tokens = make_tokenizing(chat_template=CHATML_TOOLS)
    body = {"messages": MESSAGES[:1]}
    low = json.loads(await tokens.tokenize({**body, "reasoning_effort": "low"}, Caller()))
    none = json.loads(await tokens.tokenize({**body, "reasoning_effort": "none"}, Caller()))
    assert low["tokens"] != none["tokens"]
    requests = AllRequests(make_directory(chat_template=CHATML_TOOLS))
    job = await requests.chat.job({"model": "tiny", **body, "reasoning_effort": "low"}, Caller())
    assert low["tokens"] == job.prompts[0].token_ids
