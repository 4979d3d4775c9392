"""SageMaker's one route."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.routes.job_routes import probe_of
from frontend.surfaces.invocations import invocation
from shared.errors import InvalidRequest
from shared.protocol.model_cards import EmbeddingCard, ScoreCard
from shared.protocol.reply import ScoreMethod, Surface
from tests.frontend.conftest import Stack
from tests.frontend.directory import make_directory

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("body", "surface"),
    [
        ({"messages": HI}, Surface.CHAT),
        ({"messages": HI, "prompt": "Hi"}, Surface.CHAT),
        ({"messages": None, "prompt": "Hi"}, Surface.COMPLETIONS),
        ({"input": ["Hi"]}, Surface.EMBEDDINGS),
        ({"query": "Hi", "documents": ["Ho"]}, Surface.RERANK),
        ({"text_1": "Hi", "text_2": "Ho"}, Surface.SCORE),
        ({"queries": "Hi", "items": ["Ho"]}, Surface.SCORE),
    ],
)
async def test_fields_say_which_api_a_body_is_of(body: dict[str, Any], surface: Surface) -> None:
    models = make_directory("tiny")
    assert await invocation(body, models) == (surface, {**body, "model": "tiny"})
    named = {**body, "model": "other"}
    assert await invocation(named, models) == (surface, named)


async def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'prompt'") as caught:
        await invocation({"inputs": "Hi"}, make_directory("tiny"))
    assert (caught.value.param, caught.value.code) == ("messages", "missing_field")
    with pytest.raises(InvalidRequest, match="2 models") as caught:
        await invocation({"prompt": "Hi"}, make_directory("tiny", "small"))
    assert caught.value.param == "model"


@pytest.mark.integration
async def test_answers_are_those_of_the_api(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as http:
        chat = (await http.post("/invocations", json={"messages": HI})).json()
        assert chat["choices"][0]["message"]["content"] == "Hello, world!"
        text = (await http.post("/invocations", json={"prompt": "Hi", "model": "tiny"})).json()
        assert text["object"] == "text_completion"
        streamed = await http.post("/invocations", json={"prompt": "Hi", "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        wrong = await http.post("/invocations", json={"messages": HI, "temperature": 9})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.integration
async def test_a_probe_goes_all_the_way(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as http:
        answer = await http.get("/health_generate")
        assert answer.status_code == 200, answer.text
        (run,) = stack.backend.runs.values()
        assert run.request.sampling.max_tokens == 1
        unknown = await http.get("/health_generate", params={"model": "other"})
        assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("card", "surface"),
    [
        ({}, Surface.GENERATE),
        ({"can_generate": False, "embedding": EmbeddingCard(4)}, Surface.EMBEDDINGS),
        ({"can_generate": False, "score": ScoreCard(ScoreMethod.YES_NO)}, Surface.SCORE),
    ],
)
async def test_a_probe_asks_for_what_a_model_makes(card: dict[str, Any], surface: Surface) -> None:
    assert probe_of(await make_directory("tiny", **card).model("tiny"))[0] is surface
