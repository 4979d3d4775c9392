"""Tools and reasoning over HTTP and NATS, as OpenAI's client and a resumed stream see them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import nats
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from frontend.jobs.job import Caller
from frontend.models.chat_template import ChatTemplate
from frontend.models.model_directory import ModelDirectory
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.tools.mistral import with_short_ids
from frontend.surfaces.tools.answer_styles import mark_ids
from jetflock import Client
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import AnswerFormat
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.protocol.role_cards import LevelRecord
from shared.protocol.sampling import GrammarKind
from shared.protocol.sealed_replies import unseal
from shared.protocol.token_ids import unpack_token_ids
from tests.eventually import eventually_async
from tests.frontend import published_templates as published
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import AllRequests, FakeCatalog, make_directory
from tests.frontend.models.test_published_templates import parsers_of
from tests.frontend.sse import SseEvent, sse_events
from tests.frontend.tiny_model import CHATML, VOCAB_SIZE, make_bundle, make_card, make_tokenizer

CHAT = "/v1/chat/completions"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": TOOLS,
}
TEXT = (
    "<think>\nOsló 🙂?\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Osló\\n🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ALLOWED = "tool_choice.allowed_tools"
STYLES: dict[str, Any] = {"tool_parser": "hermes", "reasoning_parser": "think"}
CHATML_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def folded(events: list[SseEvent]) -> dict[str, Any]:
    """What a client puts together from a stream."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        if event.data == "[DONE]":
            continue
        choice = event.json["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                assert call["type"] == "function"
                fields = {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                message["tool_calls"].append(fields)
            else:
                assert not call.keys() & {"id", "type"}
            known = message["tool_calls"][call["index"]]
            known["arguments"] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"] or message.get("finish_reason")
    return message


def folded_whole(answer: dict[str, Any]) -> dict[str, Any]:
    choice = answer["choices"][0]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [
            {"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])
        ],
        "finish_reason": choice["finish_reason"],
    }


async def stream_of(running: RunningFrontend, body: dict[str, Any]) -> tuple[str, list[SseEvent]]:
    async with (
        running.client() as client,
        client.stream("POST", CHAT, json={**body, "stream": True}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        return response.headers["x-request-id"], [event async for event in sse_events(response)]


@pytest.mark.integration
@pytest.mark.parametrize("with_logprobs", [False, True])
async def test_a_stream_resumes_after_every_event_and_equals_the_whole(
    stack: Stack, with_logprobs: bool
) -> None:
    stack.say(*pieces(TEXT))
    first = await stack.start_frontend(**STYLES)
    second = await stack.start_frontend()  # which need not know how the model writes
    rid, events = await stream_of(first, {**BODY, "logprobs": with_logprobs})
    async with second.client() as client:
        answer = (await client.get(f"/v1/streams/{rid}?stream=false")).json()
        expected = folded_whole(answer)
        assert folded(events) == expected
        for cut in range(len(events)):
            headers = {"Last-Event-ID": events[cut].event_id}
            async with client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
                assert response.status_code == 200
                rest = [event async for event in sse_events(response)]
            assert folded([*events[: cut + 1], *rest]) == expected, cut
    assert expected["reasoning_content"] == "Osló 🙂?"
    assert expected["content"] == "I look."
    assert [(call["name"], call["arguments"]) for call in expected["tool_calls"]] == [
        ("get_weather", '{"city": "Osló\\n🙂"}'),
        ("now", "{}"),
    ]
    assert len({call["id"] for call in expected["tool_calls"]}) == 2
    assert expected["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"]["reasoning"] == expected["reasoning_content"]
    if with_logprobs:
        told = [event.json["choices"][0]["logprobs"] for event in events[:-1]]
        num_emitted = sum(len(each["content"]) for each in told if each)
        assert num_emitted == len(pieces(TEXT))


@pytest.mark.integration
async def test_a_parser_that_older_frontends_lack_waits_until_none_lives(
    older_stack: Stack,
) -> None:
    older_stack.say(*pieces("Hm.</think>[get_weather(city='Osló'), now()]"))
    running = await older_stack.start_frontend(
        tool_parser="pythonic", reasoning_parser="deepseek_r1"
    )
    async with running.client() as client:
        refused = await client.post(CHAT, json=BODY)
        assert refused.status_code == 503
        assert "feature level 3, and the service is at 1" in refused.text
        await older_stack.cluster.level.put(LevelRecord(FEATURE_LEVEL), 0)

        async def is_taken() -> bool:
            return (await client.post(CHAT, json=BODY)).status_code == 200

        await eventually_async(is_taken, 30.0)
        rid, events = await stream_of(running, BODY)
        answer = (await client.get(f"/v1/streams/{rid}?stream=false")).json()
    assert folded(events) == folded_whole(answer)
    assert folded(events)["reasoning_content"] == "Hm."
    assert [(call["name"], call["arguments"]) for call in folded(events)["tool_calls"]] == [
        ("get_weather", '{"city": "Osló"}'),
        ("now", "{}"),
    ]


@pytest.mark.integration
async def test_a_call_that_is_cut_by_its_length(stack: Stack) -> None:
    cut = TEXT[: TEXT.index("Osló\\n") + 3]
    stack.say(*pieces(cut), finish=Finish(FinishReason.LENGTH))
    running = await stack.start_frontend(**STYLES)
    _, events = await stream_of(running, BODY)
    answer = folded(events)
    assert answer["finish_reason"] == "length"
    assert [call["arguments"] for call in answer["tool_calls"]] == ['{"city": "Osl']


@pytest.mark.integration
@pytest.mark.parametrize("parser", ["json", "hermes", "mistral"])
async def test_a_required_call_that_is_cut_leaves_no_half_json(stack: Stack, parser: str) -> None:
    begin = {"json": "", "hermes": "<tool_call>\n", "mistral": "[TOOL_CALLS]["}[parser]
    stack.say(*pieces(f'{begin}{{"name": "now", "arguments"'), finish=Finish(FinishReason.LENGTH))
    running = await stack.start_frontend(tool_parser=parser, reasoning_parser="none")
    for tool_choice in ("required", {"type": "function", "function": {"name": "now"}}):
        rid, events = await stream_of(running, {**BODY, "tool_choice": tool_choice})
        async with running.client() as client:
            whole = (await client.get(f"/v1/streams/{rid}?stream=false")).json()
        for answer in (folded(events), folded_whole(whole)):
            assert answer["finish_reason"] == "length"
            assert not answer["content"]
            assert not answer["tool_calls"]


@pytest.mark.integration
async def test_resume_while_a_call_is_written(stack: Stack) -> None:
    """The first frontend sees half a call, the second one the rest, the client one call."""
    half = TEXT.index("Osló\\n") + 2
    gate = asyncio.Event()
    stack.say(TEXT[:half], *pieces(TEXT[half:]), gate=gate)
    first, second = await stack.start_frontend(**STYLES), await stack.start_frontend()
    seen: list[SseEvent] = []
    async with first.client(headers={"X-Resume-Grace": "20"}) as client, second.client() as other:
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            rid = response.headers["x-request-id"]
            async for event in sse_events(response):
                seen.append(event)
                if folded(seen)["tool_calls"]:
                    break
        headers = {"Last-Event-ID": seen[-1].event_id}
        async with other.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
            gate.set()
            rest = [event async for event in sse_events(response)]
    [call, now] = folded([*seen, *rest])["tool_calls"]
    assert call["arguments"] == '{"city": "Osló\\n🙂"}'
    assert now["name"] == "now"


@pytest.mark.integration
async def test_openai_client(stack: Stack) -> None:
    stack.say(*pieces(TEXT))
    running = await stack.start_frontend(**STYLES)
    async with AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        whole = await client.chat.completions.create(**BODY)
        calls = whole.choices[0].message.tool_calls
        assert calls is not None
        assert whole.choices[0].finish_reason == "tool_calls"
        async with client.chat.completions.stream(**BODY) as stream:
            done = [e async for e in stream if e.type == "tool_calls.function.arguments.done"]
            final = await stream.get_final_completion()
        assert [(event.name, event.index) for event in done] == [("get_weather", 0), ("now", 1)]
        streamed = final.choices[0].message.tool_calls
        assert streamed is not None
        assert [call.function.arguments for call in streamed] == [
            call.function.arguments for call in calls
        ]
        # The next turn: what the model called, and what came of it.
        messages = [
            *BODY["messages"],
            whole.choices[0].message.model_dump(exclude_none=True),
            *({"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls),
        ]
        stack.say("<think></think>It rains.")
        answer = await client.chat.completions.create(model="tiny", messages=messages)
        assert answer.choices[0].message.content == "It rains."
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.integration
async def test_over_nats(stack: Stack) -> None:
    stack.say(*pieces(TEXT))
    await stack.start_frontend(**STYLES)
    client = await nats.connect(stack.server.url)
    try:
        data = json.dumps(BODY).encode()
        reply = await client.request("jetflock.chat.completions", data, timeout=20)
    finally:
        await client.close()
    answer = folded_whole(json.loads(reply.data))
    assert [call["name"] for call in answer["tool_calls"]] == ["get_weather", "now"]


async def request_of(template: str = CHATML_TOOLS, **fields: Any) -> GenerateRequest:
    """The request that a body becomes."""
    requests = AllRequests(make_directory(chat_template=template, max_context_len=4096))
    job = await requests.chat.job({**BODY, **fields}, Caller())
    [(request, _)] = job.requests(
        "0" * 32,
        Caller(),
        created=0,
        subject="x",
        frontend_id="f",
        max_logprob_bytes=1 << 20,
        cache_salt=job.sampling.cache_salt,
    )
    return request


def prompt_of(request: GenerateRequest) -> str:
    ids = unpack_token_ids(request.prompt_ids)
    return str(make_tokenizer().decode(ids, skip_special_tokens=False))


async def test_the_template_chooses_how_an_answer_is_read() -> None:
    request = await request_of()
    answer = unseal(request.reply).answer
    assert answer is not None
    assert (answer.tools, answer.reasoning) == ("hermes", "think")
    assert not answer.begins_in_reasoning
    assert request.sampling.grammar is None
    assert prompt_of(request).startswith(json.dumps(TOOLS))
    request = await request_of(chat_template_kwargs={"enable_thinking": True})
    answer = unseal(request.reply).answer
    assert answer is not None
    assert answer.begins_in_reasoning


async def test_switches_of_reasoning() -> None:
    plain: dict[str, Any] = {"tools": None}
    hidden = unseal((await request_of(**plain, include_reasoning=False)).reply).answer
    assert hidden is not None
    assert hidden.hides_reasoning
    assert unseal((await request_of(**plain, separate_reasoning=False)).reply).answer is None
    json_answer = await request_of(**plain, response_format={"type": "json_object"})
    assert unseal(json_answer.reply).answer is None
    hybrid = await request_of(
        **plain,
        continue_final_message=True,
        messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>H"}],
    )
    answer = unseal(hybrid.reply).answer
    assert answer is not None
    assert answer.begins_in_reasoning


async def test_tool_choice_decides_on_grammar_and_prompt() -> None:
    none = await request_of(tool_choice="none")
    assert "get_weather" not in prompt_of(none)
    answer = unseal(none.reply).answer
    assert answer is not None
    assert answer.tools is None
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        request = await request_of(tool_choice=choice)
        assert request.sampling.grammar is not None
        assert request.sampling.grammar.kind is GrammarKind.LARK
        assert "get_weather" in prompt_of(request)
    assert (await request_of(parallel_tool_calls=False)).sampling.grammar is not None


async def test_allowed_tools_are_all_that_a_grammar_lets_through() -> None:
    """The prompt names every tool: its beginning stays the same, and in the prefix cache."""
    now = {"type": "function", "function": {"name": "now"}}
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [now]}
        request = await request_of(
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
            parallel_tool_calls=True,
        )
        assert prompt_of(request) == prompt_of(await request_of(tool_choice="auto"))
        answer = unseal(request.reply).answer
        assert answer is not None
        assert answer.tool_names == ("now",)
        grammar = request.sampling.grammar
        assert grammar is not None
        assert "get_weather" not in grammar.text
        assert "calls FREE" in grammar.text or mode == "required"


async def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    request = await request_of(CHATML, messages=messages)
    prompt = prompt_of(request)
    assert '{"name": "get_weather", "description": "Of a city."' in prompt
    assert '{"name": "now", "arguments": {}}' in prompt
    assert "noon" in prompt
    answer = unseal(request.reply).answer
    assert answer is not None
    assert answer.tools == "json"


async def test_gpt_oss_takes_functions_without_a_description() -> None:
    request = await request_of(published.GPT_OSS, tool_choice="auto")
    assert "// \ntype now = " in prompt_of(request)
    answer = unseal(request.reply).answer
    assert answer is not None
    assert (answer.tools, answer.reasoning) == ("gpt_oss", "gpt_oss")


def test_marks_that_are_tokens_are_found() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "<think>"])
    answer = AnswerFormat(tools="mistral", reasoning="think")
    marks = mark_ids(AnswerParsers.of(answer), tokenizer)
    assert marks == {"[TOOL_CALLS]": VOCAB_SIZE, "<think>": VOCAB_SIZE + 1}


async def test_a_mark_that_a_tokenizer_hides_is_text() -> None:
    template = CHATML_TOOLS.replace("<tool_call>", "[TOOL_CALLS]")
    bundle = make_bundle(template)
    tokenizer = Tokenizer.from_str(bundle.files["tokenizer.json"].decode())
    tokenizer.add_special_tokens(["[TOOL_CALLS]"])
    files = {**bundle.files, "tokenizer.json": tokenizer.to_str().encode()}
    bundle = TokenizerBundle(files)
    card = make_card(bundle, max_context_len=4096, vocab_size=VOCAB_SIZE + 1)
    directory = ModelDirectory(FakeCatalog(bundle, card))  # type: ignore[arg-type]
    job = await AllRequests(directory).chat.job({**BODY}, Caller())
    assert job.sampling.text.shown_ids == (VOCAB_SIZE,)
    job = await AllRequests(directory).chat.job({**BODY, "tool_choice": "required"}, Caller())
    assert job.sampling.params.grammar is not None
    assert f"<[{VOCAB_SIZE}]>" in job.sampling.params.grammar.text


def test_ids_for_mistral() -> None:
    call = {"id": "call_5", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "call_5"},
        {"role": "tool", "content": "y", "tool_call_id": "abcDEF123"},
    ]
    short = with_short_ids(messages)
    assert short[0] == messages[0]
    assert short[1]["tool_calls"][0]["id"] == short[2]["tool_call_id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", short[2]["tool_call_id"])
    assert short[3]["tool_call_id"] == "abcDEF123"


@pytest.mark.integration
async def test_the_python_client_reads_on_where_marks_are_hidden(stack: Stack) -> None:
    """The text that it gets is less than its event ids count: that is no gap."""
    stack.say(*pieces(TEXT), lose=frozenset({6}))
    await stack.start_frontend(**STYLES)
    async with Client(stack.server.url) as client:
        job = client.generate_async(messages=BODY["messages"], model="tiny", tools=TOOLS)
        result = await job
    assert result.text == "I look."
    assert result.reasoning == "Osló 🙂?"
    calls = [(call.name, json.loads(call.arguments)) for call in result.tool_calls]
    assert calls == [("get_weather", {"city": "Osló\n🙂"}), ("now", {})]
    assert all(call.id for call in result.tool_calls)
    assert result.finish_reason == "tool_calls"
    assert job.num_resumes == 0


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<tool_call>' }}{{ tools }}", "hermes", None),
        ("{{ '[TOOL_CALLS]' }}{{ tools }}", "mistral", None),
        ("{{ '[TOOL_CALLS]x[ARGS][/THINK]' }}", "mistral-args", "mistral"),
        ("Environment: ipython {{ '\"parameters\": ' }}", "llama3", None),
        ("<tool_call><function=", "qwen3-coder", None),
        ("</think>", "json", "think"),
    ],
)
def test_styles_of_templates(template: str, tools: str | None, reasoning: str | None) -> None:
    assert parsers_of(ChatTemplate(template, {})) == (tools, reasoning)


NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": {"a": 1}}, "tools", "invalid_type"),
        ({"tools": [5]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_field"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "unsupported_parameter"),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
            "missing_field",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
            "tools[0].function.parameters",
            "invalid_type",
        ),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools[1].function.name", "invalid_value"),
        ({"tools": TOOLS * 65}, "tools", "invalid_value"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": None, "tool_choice": NAMED}, "tool_choice", "invalid_value"),
        ({"tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing_field"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "unsupported_parameter"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "allowed_tools"}}, ALLOWED, "missing_field"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any"}}},
            f"{ALLOWED}.mode",
            "invalid_value",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            f"{ALLOWED}.tools",
            "missing_field",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]},
                }
            },
            f"{ALLOWED}.tools[0].function.name",
            "invalid_value",
        ),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "invalid_value",
        ),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "invalid_value"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls[0].function",
            "missing_field",
        ),
    ],
)
async def test_bad_fields_are_named(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        await request_of(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.status_code == 400


@pytest.mark.integration
async def test_a_grammar_that_cannot_be_met_is_refused_by_the_frontend(stack: Stack) -> None:
    running = await stack.start_frontend(**STYLES)
    never = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": never}}]
    async with running.client() as client:
        answer = await client.post(CHAT, json={**BODY, "tools": tools, "tool_choice": "required"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
