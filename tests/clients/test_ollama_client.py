"""Ollama's own client: chat, streams, tools, formats, vectors, models."""

from __future__ import annotations

import json

import pytest
from ollama import AsyncClient, Client, ResponseError

MODEL = "jetflock-demo:latest"
HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
GREEDY = {"temperature": 0, "num_predict": 16}
PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@pytest.fixture
def client(url: str) -> Client:
    return Client(host=url.removesuffix("/v1"))


def test_models(client: Client) -> None:
    assert MODEL in [model.model for model in client.list().models]
    assert MODEL in [model.model for model in client.ps().models]
    shown = client.show(MODEL)
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    with pytest.raises(ResponseError) as unknown:
        client.chat(model="other", messages=HELLO)
    assert unknown.value.status_code == 404


def test_a_stream_is_the_answer(client: Client) -> None:
    whole = client.chat(model=MODEL, messages=HELLO, options=GREEDY)
    parts = list(client.chat(model=MODEL, messages=HELLO, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done
    assert parts[-1].eval_count == whole.eval_count
    assert whole.eval_duration
    generated = client.generate(model=MODEL, prompt="Hello", options=GREEDY, keep_alive="5m")
    assert generated.response


def test_an_answer_has_its_format(client: Client) -> None:
    answer = client.chat(model=MODEL, messages=HELLO, format=PET, options={"temperature": 0})
    assert json.loads(answer.message.content or "")["kind"] in ("cat", "dog")


async def test_a_stream_that_is_awaited(url: str) -> None:
    client = AsyncClient(host=url.removesuffix("/v1"))
    stream = await client.generate(model=MODEL, prompt="Hello", options=GREEDY, stream=True)
    assert [part.done async for part in stream][-1]


def test_vectors(client: Client) -> None:
    embedded = client.embed(model=MODEL, input=["cat", "dog"])
    assert len(embedded.embeddings) == 2
