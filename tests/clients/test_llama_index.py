"""LlamaIndex, as of a service like OpenAI's: chat, streams, tools, structured output, vectors."""

# No `from __future__ import annotations` here: a tool's types are read at run time.

from typing import Literal

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

MODEL = "jetflock-demo"
HELLO = [ChatMessage(role="user", content="Hello! Who are you?")]


class Pet(BaseModel, extra="forbid"):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


def forecast(days: Literal[1, 2, 3]) -> str:
    """The weather of the next days."""
    return "rain, " * days


@pytest.fixture
def llm(url: str) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=url,
        api_key="none",
        temperature=0,
        max_tokens=300,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
    )


async def test_whole_and_streamed(llm: OpenAILike) -> None:
    text = llm.chat(HELLO).message.content
    assert text is not None
    assert "jetflock" in text
    assert "".join(part.delta or "" for part in llm.stream_chat(HELLO)) == text
    stream = await llm.astream_chat(HELLO)
    assert "".join([part.delta or "" async for part in stream]) == text
    whole = llm.complete("Once upon a time").text
    assert list(llm.stream_complete("Once upon a time"))[-1].text == whole


def test_a_tool_that_must_be_called(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(forecast)
    answer = llm.chat_with_tools([tool], "Will it rain?", tool_required=True)
    [call] = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "forecast"
    assert call.tool_kwargs["days"] in (1, 2, 3)
    *_, last = llm.stream_chat_with_tools([tool], "Will it rain?", tool_required=True)
    assert llm.get_tool_calls_from_response(last)[0].tool_name == "forecast"


def test_structured_output(llm: OpenAILike) -> None:
    answer = llm.as_structured_llm(Pet).chat([ChatMessage(role="user", content="Of a cat.")])
    assert isinstance(answer.raw, Pet)


def test_vectors(url: str) -> None:
    vectors = OpenAILikeEmbedding(model_name=MODEL, api_base=url, api_key="none")
    cat, dog = vectors.get_text_embedding_batch(["a cat", "a dog"])
    assert vectors.get_text_embedding("a cat") == pytest.approx(cat, abs=1e-5)
    assert cat != pytest.approx(dog, abs=1e-5)
