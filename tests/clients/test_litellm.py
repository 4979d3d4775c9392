"""LiteLLM: chat, streams, tools, schemas and vectors, as OpenAI's service and as Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest
from pydantic import BaseModel, Field

HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
FORECAST = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {
            "type": "object",
            "properties": {"days": {"enum": [1, 2, 3]}},
            "required": ["days"],
            "maxProperties": 1,  # LiteLLM takes out additionalProperties
        },
    },
}


class Pet(BaseModel, extra="forbid"):
    age: int = Field(ge=0, le=30)


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def asked(request: pytest.FixtureRequest, url: str) -> dict[str, Any]:
    """As each of the services that it can take ours for."""
    root = url.removesuffix("/v1") if request.param == "anthropic" else url
    model = f"{request.param}/jetflock-demo"
    given = {"model": model, "api_base": root, "api_key": "none", "messages": HELLO}
    return {**given, "temperature": 0, "max_tokens": 300, "num_retries": 0}


async def test_whole_and_streamed(asked: dict[str, Any]) -> None:
    answer = litellm.completion(**asked)
    text = answer.choices[0].message.content
    assert "jetflock" in text
    assert answer.usage.completion_tokens > 5
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    joined = litellm.stream_chunk_builder(chunks)
    assert joined.usage.completion_tokens == answer.usage.completion_tokens
    awaited = await litellm.acompletion(**asked, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in awaited]) == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call(asked: dict[str, Any], stream: bool) -> None:
    wanted = {"type": "function", "function": {"name": "forecast"}}
    answer = litellm.completion(**asked, tools=[FORECAST], tool_choice=wanted, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments)["days"] in (1, 2, 3)
    told = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*HELLO, message.model_dump(exclude_none=True), told]
    assert litellm.completion(**{**asked, "messages": messages}, tools=[FORECAST]).choices


def test_structured_output(asked: dict[str, Any]) -> None:
    answer = litellm.completion(**asked, response_format=Pet)
    assert Pet.model_validate_json(answer.choices[0].message.content)


def test_vectors(url: str) -> None:
    for provider in ("openai", "hosted_vllm"):
        found = litellm.embedding(
            f"{provider}/jetflock-demo", ["a cat", "a dog"], api_base=url, api_key="none"
        )
        assert len(found.data) == 2
