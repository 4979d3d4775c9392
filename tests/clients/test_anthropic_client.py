"""Anthropic's own client: messages, streams, tools, counts, errors."""

from __future__ import annotations

import pytest
from anthropic import Anthropic, AsyncAnthropic, NotFoundError

MODEL = "jetflock-demo"
HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
ASKED = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "extra_body": {"temperature": 0.0}}
FORECAST = {
    "name": "forecast",
    "description": "The weather of the next days.",
    "input_schema": {
        "type": "object",
        "properties": {"days": {"enum": [1, 2, 3]}},
        "required": ["days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def root(url: str) -> str:
    return url.removesuffix("/v1")


@pytest.fixture
def client(root: str) -> Anthropic:
    return Anthropic(base_url=root, api_key="none", max_retries=0)


async def test_whole_and_streamed(root: str, client: Anthropic) -> None:
    answer = client.messages.create(**ASKED)
    [block] = answer.content
    assert "jetflock" in block.text
    assert answer.stop_reason == "end_turn"
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == block.text
        assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
    async with AsyncAnthropic(base_url=root, api_key="none").messages.stream(**ASKED) as awaited:
        assert "".join([text async for text in awaited.text_stream]) == block.text


def test_a_streamed_tool_call(client: Anthropic) -> None:
    asked = {**ASKED, "tools": [FORECAST], "tool_choice": {"type": "tool", "name": "forecast"}}
    with client.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert call.input["days"] in (1, 2, 3)
    told = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]
    turns = [*HELLO, {"role": "assistant", "content": message.content}]
    again = client.messages.create(
        **{**ASKED, "tools": [FORECAST], "messages": [*turns, {"role": "user", "content": told}]}
    )
    assert again.content


def test_counts_and_models(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    assert counted == client.messages.create(**ASKED).usage.input_tokens
    assert MODEL in [model.id for model in client.models.list()]
    with pytest.raises(NotFoundError, match="other"):
        client.messages.create(**{**ASKED, "model": "other"})
