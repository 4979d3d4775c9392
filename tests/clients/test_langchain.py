"""LangChain's OpenAI models: chat, streams, tools, structured output, vectors."""

from __future__ import annotations

from typing import Literal

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

MODEL = "jetflock-demo"
HELLO = "Hello! Who are you?"


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


@tool
def forecast(days: Literal[1, 2, 3]) -> str:
    """The weather of the next days."""
    return "rain, " * days


@pytest.fixture
def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, api_key="none", model=MODEL, temperature=0, max_retries=0)


async def test_whole_streamed_and_batched(chat: ChatOpenAI) -> None:
    answer = chat.invoke(HELLO)
    assert "jetflock" in answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 5
    assert "".join(chunk.text for chunk in chat.stream(HELLO)) == answer.text
    assert "".join([chunk.text async for chunk in chat.astream(HELLO)]) == answer.text
    assert [each.text for each in chat.batch([HELLO, HELLO])] == [answer.text] * 2


def test_a_tool_that_must_be_called(chat: ChatOpenAI) -> None:
    answer = chat.bind_tools([forecast], tool_choice="forecast", strict=True).invoke(
        "Will it rain?"
    )
    [call] = answer.tool_calls
    assert call["name"] == "forecast"
    assert call["args"]["days"] in (1, 2, 3)
    told = forecast.invoke(call)
    again = chat.invoke([("user", "Will it rain?"), answer, told])
    assert again.text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: ChatOpenAI, method: str) -> None:
    pet = chat.with_structured_output(Pet, method=method, strict=True).invoke("Tell me of a cat.")
    assert isinstance(pet, Pet)


def test_responses(url: str) -> None:
    chat = ChatOpenAI(
        base_url=url, api_key="none", model=MODEL, temperature=0, use_responses_api=True
    )
    answer = chat.invoke(HELLO)
    assert "jetflock" in answer.text
    assert "".join(chunk.text for chunk in chat.stream(HELLO)) == answer.text


def test_vectors(url: str) -> None:
    vectors = OpenAIEmbeddings(
        base_url=url, api_key="none", model=MODEL, check_embedding_ctx_length=False
    )
    cat, dog, again = vectors.embed_documents(["a cat", "a dog", "a cat"])
    assert cat == pytest.approx(again, abs=1e-5)
    assert cat != pytest.approx(dog, abs=1e-5)
    assert vectors.embed_query("a cat") == pytest.approx(cat, abs=1e-5)
