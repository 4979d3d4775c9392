"""OpenAI's own client: chat, streams, tools, schemas, responses, vectors, errors."""

from __future__ import annotations

from typing import Literal

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from pydantic import BaseModel, Field

MODEL = "jetflock-demo"
HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
FORECAST = {
    "type": "function",
    "function": {
        "name": "forecast",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"days": {"enum": [1, 2, 3]}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
}


class Pet(BaseModel, extra="forbid"):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


@pytest.fixture
def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0)


async def test_whole_and_streamed(url: str, client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "temperature": 0}
    answer = client.chat.completions.create(**asked)
    text = answer.choices[0].message.content
    assert "jetflock" in text
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    awaited = AsyncOpenAI(base_url=url, api_key="none")
    chunks = await awaited.chat.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == text


def test_a_streamed_tool_call(client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "tools": [FORECAST], "tool_choice": "required"}
    with client.chat.completions.stream(**asked) as stream:
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.name == "forecast"
    assert call.function.parsed_arguments["days"] in (1, 2, 3)
    told = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    function = {"name": call.function.name, "arguments": call.function.arguments}
    calls = [{"id": call.id, "type": "function", "function": function}]
    called = {"role": "assistant", "tool_calls": calls}
    again = client.chat.completions.create(model=MODEL, messages=[*HELLO, called, told])
    assert again.choices[0].message.content


def test_structured_output(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Pet)
    assert isinstance(answer.choices[0].message.parsed, Pet)
    response = client.responses.parse(model=MODEL, input="Tell me of a cat.", text_format=Pet)
    assert isinstance(response.output_parsed, Pet)


def test_responses(client: OpenAI) -> None:
    asked = {"model": MODEL, "input": "Hello! Who are you?", "temperature": 0}
    answer = client.responses.create(**asked)
    counted = client.responses.input_tokens.count(model=MODEL, input=asked["input"])
    assert counted.input_tokens == answer.usage.input_tokens
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.output_text == answer.output_text
    assert client.responses.retrieve(answer.id).output_text == answer.output_text


def test_vectors_and_models(client: OpenAI) -> None:
    vectors = client.embeddings.create(model=MODEL, input=["a cat", "a dog"]).data
    assert [len(each.embedding) for each in vectors] == [len(vectors[0].embedding)] * 2
    assert MODEL in [model.id for model in client.models.list()]
    with pytest.raises(NotFoundError, match="other"):
        client.chat.completions.create(model="other", messages=HELLO)
