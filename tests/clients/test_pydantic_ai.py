"""Pydantic AI: agents that answer, stream, call tools and give objects, by chat and responses."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "jetflock-demo"
HELLO = "Hello! Who are you?"
GREEDY = {"temperature": 0.0, "max_tokens": 300}


class Pet(BaseModel, extra="forbid"):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


@pytest.fixture
def provider(url: str) -> OpenAIProvider:
    return OpenAIProvider(base_url=url, api_key="none")


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, provider: OpenAIProvider) -> Model:
    made: Model = request.param(MODEL, provider=provider)
    return made


async def test_whole_and_streamed(model: Model) -> None:
    agent = Agent(model, model_settings=GREEDY)
    answer = await agent.run(HELLO)
    assert "jetflock" in answer.output
    assert answer.usage.output_tokens > 5
    async with agent.run_stream(HELLO) as stream:
        assert "".join([part async for part in stream.stream_text(delta=True)]) == answer.output


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
async def test_an_object(model: Model, kind: type) -> None:
    agent = Agent(model, output_type=kind(Pet, strict=True), model_settings=GREEDY)
    assert isinstance((await agent.run("Tell me of a cat.")).output, Pet)
    async with agent.run_stream("Tell me of a cat.") as stream:
        assert isinstance(await stream.get_output(), Pet)


async def test_vectors(provider: OpenAIProvider) -> None:
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=provider))
    found = await embedder.embed_documents(["a cat", "a dog"])
    assert len(found.embeddings) == 2
