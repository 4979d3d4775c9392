"""Anthropic's Messages API, driven by its own client."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from frontend.jobs.job import Caller
from frontend.openapi.answers import EVENTS
from frontend.surfaces.anthropic.conversation import Turn, continues, conversation_of
from frontend.surfaces.anthropic.message_answer import Message
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.chat.messages import TextPart
from shared.errors import RequestError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import Surface
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.protocol.token_ids import unpack_token_ids
from tests.anthropic_sdk import anthropic_sdk
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.images.test_images import make_chats
from tests.frontend.seeing_model import data_url, image_bytes, image_part, make_image, text_part
from tests.frontend.sse import sse_events
from tests.frontend.surfaces.test_reasoning_tokens import BEGIN, END, thinking_bundle
from tests.frontend.surfaces.test_tools import CHATML_TOOLS, STYLES, TEXT, pieces
from tests.frontend.tiny_model import make_card, make_tokenizer, register
from tests.frontend.told_answers import check_answer

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "Of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
        "cache_control": {"type": "ephemeral"},
    },
    {"type": "custom", "name": "now", "input_schema": {"type": "object"}},
]
EVENT_KINDS = {str(kind.__struct_config__.tag): kind for kind in EVENTS[Message]}
BODY: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Weather?"}],
}


@pytest.fixture
async def running(stack: Stack) -> RunningFrontend:
    return await stack.start_frontend(**STYLES, api_key=("alpha",))


@pytest.fixture
async def client(running: RunningFrontend) -> AsyncIterator[AsyncAnthropic]:
    anthropic = anthropic_sdk()
    async with anthropic.AsyncAnthropic(
        base_url=running.url, api_key="alpha", max_retries=0, timeout=20
    ) as client:
        yield client


def make_requests(template: str = CHATML_TOOLS) -> MessageRequests:
    directory = make_directory(chat_template=template, max_context_len=4096)
    chats = AllRequests(directory).chat
    return MessageRequests(directory, chats)


async def streamed(client: AsyncAnthropic, **body: Any) -> Any:
    async with client.messages.stream(**body) as events:
        return await events.get_final_message()


def told(message: Any) -> list[dict[str, Any]]:
    """Content without the ids of calls, which are made of the request's."""
    return [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]


def prompt_of(request: GenerateRequest) -> str:
    ids = unpack_token_ids(request.prompt_ids)
    return str(make_tokenizer().decode(ids, skip_special_tokens=False))


@pytest.mark.integration
async def test_a_message_and_its_stream_say_the_same(
    stack: Stack, running: RunningFrontend, client: AsyncAnthropic
) -> None:
    stack.say(*pieces(TEXT))
    whole = await client.messages.create(**BODY, tools=TOOLS)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, weather, now = whole.content
    assert getattr(thinking, "thinking", "") == "Osló 🙂?"
    assert getattr(text, "text", "") == "I look."
    assert weather.type == now.type == "tool_use"
    assert (weather.name, weather.input) == ("get_weather", {"city": "Osló\n🙂"})
    assert (now.name, now.input) == ("now", {})
    assert weather.id != now.id
    assert (whole.stop_reason, whole.stop_sequence) == ("tool_use", None)
    assert whole.id == f"msg_{whole._request_id}"
    async with client.messages.stream(**BODY, tools=TOOLS) as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert told(final) == told(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens == len(pieces(TEXT))
    assert final.stop_reason == "tool_use"
    counted = await client.messages.count_tokens(
        model="tiny", messages=BODY["messages"], tools=TOOLS
    )
    assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.integration
async def test_the_wire_has_names_indices_and_an_order(
    stack: Stack, running: RunningFrontend
) -> None:
    stack.say(*pieces(TEXT, 2), finish=Finish(FinishReason.STOP, num_cached_tokens=3))
    async with running.client(headers={"x-api-key": "alpha"}) as http:
        body = {**BODY, "tools": TOOLS, "stream": True}
        async with http.stream("POST", "/v1/messages", json=body) as response:
            assert response.status_code == 200, await response.aread()
            rid = response.headers["request-id"]
            assert response.headers["x-request-id"] == rid
            lines = (await response.aread()).decode().split("\n\n")
        events = []
        for record in filter(None, lines):
            name, data = record.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        # The stream again, from its beginning; and the whole.
        async with http.stream("GET", f"/v1/streams/{rid}") as response:
            again = [event.json async for event in sse_events(response)]
        assert (again[0], again[-2:]) == (events[0], events[-2:])
        assert folded(again) == folded(events)
        refused = await http.get(
            f"/v1/streams/{rid}", headers={"Last-Event-ID": f"{rid}.0.0.00000000"}
        )
        assert "have no ids" in refused.json()["error"]["message"]
        whole = (await http.get(f"/v1/streams/{rid}?stream=false")).json()
    check_answer(Message, whole)
    for event in events:
        check_answer(EVENT_KINDS[event["type"]], event)
    assert whole["content"] == folded(events)
    start, *_, end, stop = events
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert stop == {"type": "message_stop"}
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"] == whole["usage"]
    assert end["usage"]["cache_read_input_tokens"] == 3
    assert start["message"]["usage"]["input_tokens"] == end["usage"]["input_tokens"] + 3


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Content by the rules: blocks open and close one after the other."""
    content: list[dict[str, Any]] = []
    is_open, written = False, ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(content)
                content.append(dict(event["content_block"]))
                is_open, written = True, ""
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(content) - 1
                delta, block = event["delta"], content[-1]
                if delta["type"] == "input_json_delta":
                    written += delta["partial_json"]
                    continue
                name = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                block[name] += delta[name]
            case "content_block_stop":
                assert is_open
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = json.loads(written) if written else {}
                is_open = False
    assert not is_open
    return content


@pytest.mark.integration
async def test_ends_are_told_apart(stack: Stack, client: AsyncAnthropic) -> None:
    stack.say("One", ", two", finish=Finish(FinishReason.STOP, matched="3"))
    answer = await client.messages.create(**BODY, stop_sequences=["3"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "3")
    [run] = stack.backend.runs.values()
    assert run.request.text.stop == ("3",)
    assert unseal(run.reply).surface is Surface.MESSAGES
    stack.say("One", finish=Finish(FinishReason.LENGTH))
    assert (await client.messages.create(**BODY)).stop_reason == "max_tokens"
    stack.say("Bye", finish=Finish(FinishReason.STOP, matched=258))
    answer = await client.messages.create(**BODY)
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    stack.say("", finish=Finish(FinishReason.STOP))
    assert (await client.messages.create(**BODY)).content == []


@pytest.mark.integration
async def test_a_call_that_is_cut_has_what_there_is(stack: Stack, client: AsyncAnthropic) -> None:
    cut = TEXT[: TEXT.index("Osló\\n") + 3]
    stack.say(*pieces(cut), finish=Finish(FinishReason.LENGTH))
    whole = await client.messages.create(**BODY, tools=TOOLS)
    final = await streamed(client, **BODY, tools=TOOLS)
    for message in (whole, final):
        assert message.stop_reason == "max_tokens"
        block = message.content[-1]
        assert block.type == "tool_use"
    assert whole.content[-1].input == final.content[-1].input


@pytest.mark.integration
async def test_thinking_tokens_are_counted(stack: Stack) -> None:
    bundle = thinking_bundle()
    await register(stack.cluster, bundle, make_card(bundle))
    stack.say("<think>", "hm", "</think>", "yes", piece_ids=[[BEGIN], [72, 73], [END], [74, 75]])
    running = await stack.start_frontend()
    anthropic = anthropic_sdk()
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="x", max_retries=0) as client:
        budget: Any = {"type": "enabled", "budget_tokens": 1024}
        answer = await client.messages.create(**BODY, thinking=budget)
        assert answer.usage.output_tokens_details is not None
        assert answer.usage.output_tokens_details.thinking_tokens == 4
        hidden: Any = {"type": "adaptive", "display": "omitted"}
        answer = await client.messages.create(**BODY, thinking=hidden)
    assert [block.type for block in answer.content] == ["text"]


@pytest.mark.integration
async def test_errors_have_anthropics_shape(
    stack: Stack, running: RunningFrontend, client: AsyncAnthropic
) -> None:
    anthropic = anthropic_sdk()
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(**{**BODY, "model": "other"})
    assert unknown.value.type == "not_found_error"
    assert unknown.value.error_code == "model_not_found"
    with pytest.raises(anthropic.BadRequestError, match="temperature") as wrong:
        await client.messages.create(**BODY, extra_body={"temperature": 9})
    assert wrong.value.type == "invalid_request_error"
    async with running.client(headers={"x-api-key": "alpha"}) as http:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await http.post(path, content=b"{")
            assert answer.json()["type"] == "error"
            assert answer.json()["error"]["details"]["error_code"] == "invalid_json"
            answer = await http.post(path, json=BODY, headers={"x-api-key": "no"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (
                401,
                "authentication_error",
            )
        answer = await http.post(
            "/v1/messages", json=BODY, headers={"x-api-key": "no", "authorization": "Bearer alpha"}
        )
        assert answer.status_code == 200
    stack.say("a", "b", finish=Finish(FinishReason.ERROR, message="broken"))
    anthropic = anthropic_sdk()
    with pytest.raises(anthropic.InternalServerError, match="broken"):
        await client.messages.create(**BODY)
    with pytest.raises(anthropic.APIStatusError, match="broken") as broken:
        await streamed(client, **BODY)
    assert broken.value.type == "api_error"


@pytest.mark.integration
async def test_silence_is_filled_with_ping_events(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("a", "b", gate=gate)
    running = await stack.start_frontend(ping_interval_s=0.1)
    async with (
        running.client() as http,
        http.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as response,
    ):
        kinds = []
        async for event in sse_events(response):
            kinds.append(event.json["type"])
            if kinds[-1] == "ping":
                gate.set()
    assert kinds[-1] == "message_stop"


def test_blocks_become_messages_of_a_chat() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "user", "content": [{"type": "text", "text": "In Oslo."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}],
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]
    turns = msgspec.convert(messages, list[Turn])
    made = conversation_of(msgspec.convert(system, list[TextPart]), turns).messages
    calls = made[2].pop("tool_calls")
    assert made == [
        {"role": "system", "content": "Be\nkind."},
        {"role": "user", "content": "Weather?\nIn Oslo."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no"},
        {"role": "user", "content": "And now?"},
    ]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("a", {"name": "f", "arguments": {"city": "Oslo"}}),
        ("b", {"name": "g", "arguments": {}}),
    ]
    assert not continues(made)


async def request_of(**fields: Any) -> GenerateRequest:
    job = await make_requests().job({**BODY, **fields}, Caller())
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


async def test_a_last_turn_of_the_assistant_is_continued() -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "It is ("}]
    request = await request_of(messages=messages, system="Short.")
    assert prompt_of(request).endswith("<|im_start|>assistant\nIt is (")
    assert prompt_of(request).startswith("<|im_start|>system\nShort.")
    assert await make_requests().count(
        {**BODY, "messages": messages, "system": "Short."}, Caller()
    ) == len(unpack_token_ids(request.prompt_ids))


async def test_choices_and_switches_reach_the_chat() -> None:
    free = await request_of(tools=TOOLS)
    assert free.sampling.grammar is None
    for choice in (
        {"type": "any"},
        {"type": "tool", "name": "now"},
        {"type": "auto", "disable_parallel_tool_use": True},
    ):
        request = await request_of(tools=TOOLS, tool_choice=choice)
        assert request.sampling.grammar is not None
        assert prompt_of(request) == prompt_of(free)
    none = await request_of(tools=TOOLS, tool_choice={"type": "none"})
    assert "get_weather" not in prompt_of(none)
    assert prompt_of(await request_of(thinking={"type": "enabled"})) == (
        prompt_of(await request_of()).replace("<think>\n\n</think>\n\n", "<think>\n")
    )
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    output = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    assert (await request_of(output_config=output)).sampling.grammar is not None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"model": None}, "model", "required"),
        ({"messages": None}, "messages", "required"),
        ({"messages": [{"role": "me", "content": "x"}]}, "messages[0].role", '"me"'),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages[0].content[0].type",
            "document",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source.type",
            "required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
            "required",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 5}]}]},
            "messages[0].content[0].input",
            "wrong type",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
                    }
                ]
            },
            "messages",
            "tool_result is missing",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type", "image"),
        ({"system": 5}, "system", "wrong type"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type", "web_search"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "required"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name", "'tools.0..name'"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}, "strict": True}]},
            "tools[0].input_schema.type",
            "tools.0..input_schema.type' is .array",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name", "required"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}},
            "tool_choice.name",
            "'f'",
        ),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type", "required"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "between_tools"),
        ({"thinking": {}}, "thinking.type", "required"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "'stop_sequences' has 17"),
        ({"stop_sequences": [""]}, "stop_sequences", "'stop_sequences'"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "xml"),
        ({"mcp_servers": [{}]}, "mcp_servers", "not supported"),
        ({"container": "c"}, "container", "not supported"),
        ({"temperature": 9}, "temperature", "is 9"),
        ({"output_config": {"effort": "all"}}, "output_config.effort", "output_config.effort' is"),
    ],
)
async def test_what_is_wrong_is_named_as_it_stands_in_the_body(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        await make_requests().job({**BODY, **fields}, Caller())
    assert caught.value.param == param


async def test_thinking_that_cannot_be_is_refused() -> None:
    with pytest.raises(RequestError, match="does not think aloud") as caught:
        await make_requests("{{ messages }}").job(
            {**BODY, "thinking": {"type": "enabled"}}, Caller()
        )
    assert caught.value.param == "thinking.type"


def image(data: bytes, kind: str = "png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": f"image/{kind}", "data": b64encode(data).decode()}
    return {"type": "image", "source": source}


async def test_images_are_those_of_a_chat() -> None:
    chats = make_chats()
    requests = MessageRequests(chats._models, chats)
    png = image_bytes(make_image())
    content = [{"type": "text", "text": "Look: "}, image(png)]
    body = {**BODY, "messages": [{"role": "user", "content": content}]}
    job = await requests.job(body, Caller())
    parts = [text_part("Look: "), image_part(data_url(png))]
    same = await chats.job(
        {"model": "tiny", "messages": [{"role": "user", "content": parts}]}, Caller()
    )
    assert job.prompts == same.prompts
    assert job.prompts[0].images
    assert await requests.count(body, Caller()) == len(job.prompts[0].token_ids)


async def test_an_image_that_is_wrong_is_named_where_it_stands() -> None:
    chats = make_chats()
    requests = MessageRequests(chats._models, chats)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, image(b"hello")]},
    ]
    with pytest.raises(RequestError, match=r"'messages\[1\].content\[1\]' is an image") as caught:
        await requests.job({**BODY, "messages": messages, "system": "Be kind."}, Caller())
    assert caught.value.param == "messages[1].content[1]"
    with pytest.raises(RequestError, match="takes no images") as blind:
        await make_requests().job({**BODY, "messages": messages}, Caller())
    assert blind.value.param == "messages[1].content[1]"
