"""The table of fields says what the code does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.openapi.api_table import api_table
from frontend.openapi.bodies import body_schemas
from frontend.openapi.body_routes import DEFAULTS, MESSAGES, OLLAMA, ROUTES, BodyRoute
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.classes.class_request import ClassRequests, PoolingRequests
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.embeddings.pooled_inputs import PooledInputs
from frontend.surfaces.ollama.requests import OllamaChats, OllamaCompletions, OllamaEmbeddings
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.scores.rerank_request import RerankRequests
from frontend.surfaces.scores.score_request import ScoreRequests
from shared.errors import UnsupportedParameter
from shared.protocol.model_cards import ClassifierCard, EmbeddingCard, ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import PoolingKind
from tests.frontend.directory import (
    FIM_MARKS,
    AllRequests,
    make_directory,
    make_filling_directory,
    make_image_loader,
)
from tests.frontend.fields.test_validation import chat_body, completion_body, requests_of

DOCUMENT = Path(__file__).parents[3] / "docs/api.md"
SCHEMAS = body_schemas()
BODIES: dict[str, dict[str, Any]] = {
    "chat": chat_body(),
    "completions": completion_body(),
    "generate": {"text": "Hi"},
    "infill": {"input_prefix": "Hi", "input_suffix": "Ho"},
    "embeddings": {"model": "tiny", "input": "Hi"},
    "score": {"model": "tiny", "text_1": "Hi", "text_2": "Ho"},
    "responses": {"model": "tiny", "input": "Hi"},
    "rerank": {"model": "tiny", "query": "Hi", "documents": ["Ho"]},
    "classify": {"model": "tiny", "input": "Hi"},
    "pooling": {"model": "tiny", "input": "Hi"},
    "messages": {**chat_body(), "max_tokens": 7},
    "api/chat": {**chat_body(), "stream": True},
    "api/generate": {"model": "tiny", "prompt": "Hi", "stream": True},
    "api/embed": {"model": "tiny", "input": "Hi"},
}


def _inputs(models: ModelDirectory) -> PooledInputs:
    return PooledInputs(models, PromptEncoder(), AllRequests(models).chat)


ALL_ROUTES = [*ROUTES, MESSAGES, *OLLAMA]
WITHOUT_TEXT: dict[str, Callable[[ModelDirectory], Any]] = {
    "embeddings": lambda models: EmbeddingRequests(_inputs(models)),
    "score": lambda models: ScoreRequests(models, PromptEncoder()),
    "rerank": lambda models: RerankRequests(models, PromptEncoder()),
    "classify": lambda models: ClassRequests(_inputs(models)),
    "pooling": lambda models: PoolingRequests(_inputs(models)),
}
SCORE = ScoreCard(ScoreMethod.YES_NO, answer_ids=(1, 2))
CLASSES = ClassifierCard(("a", "b"))
ASKING: tuple[Any, ...] = (True, "x", ["x"], 7, False)


async def requests_for(
    route: BodyRoute, fields: dict[str, Any]
) -> tuple[bool, list[GenerateRequest]]:
    """What is queued for the shortest body with these fields; and whether it is streamed."""
    card = EmbeddingCard(num_dimensions=8, pooling=PoolingKind.LAST, normalize=True)
    directory = make_directory(embedding=card, score=SCORE, classifier=CLASSES)
    if route.name == "infill":
        directory = make_filling_directory(*FIM_MARKS)
    requests: Any
    if route.name in WITHOUT_TEXT:
        requests = WITHOUT_TEXT[route.name](directory)
    elif route.name == "responses":
        store: Any = None  # nobody asks for an earlier one
        readers = ResponseRequests(directory, PromptEncoder(), store, store, make_image_loader())
        job = await readers.job({**BODIES[route.name], "seed": 1, **fields}, Caller())
        return job.stream, without_times(job)
    elif route is MESSAGES:
        job = await MessageRequests(directory, AllRequests(directory).chat).job(
            {**BODIES[route.name], **fields}, Caller()
        )
        return job.stream, without_seeds(job)
    elif route in OLLAMA:
        job = await ollama_requests(route, directory).job(
            {**BODIES[route.name], **fields}, Caller()
        )
        return job.stream, without_seeds(job)
    else:
        requests = getattr(AllRequests(directory), route.name)
        fields = {"seed": 1, **fields}
    job = await requests.job({**BODIES[route.name], **fields}, Caller())
    return job.stream, without_times(job)


def ollama_requests(route: BodyRoute, directory: ModelDirectory) -> Any:
    requests = AllRequests(directory)
    return {
        "api/chat": OllamaChats(directory, requests.chat),
        "api/generate": OllamaCompletions(directory, requests.chat, requests.completions),
        "api/embed": OllamaEmbeddings(directory, WITHOUT_TEXT["embeddings"](directory)),
    }[route.name]


def without_times(job: Job) -> list[GenerateRequest]:
    return [
        msgspec.structs.replace(request, reply=msgspec.structs.replace(request.reply, created=0))
        for request in requests_of(job)
    ]


def without_seeds(job: Job) -> list[GenerateRequest]:
    """Of a route that has no field for it."""
    return [
        msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, seed=0))
        for request in without_times(job)
    ]


def test_the_document_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text() == api_table(), (
        "run: python -m frontend.openapi.api_table > docs/api.md"
    )


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: route.name)
async def test_what_is_refused_is_refused_by_name(route: BodyRoute) -> None:
    for name, asks in route.refused.items():
        value = next(value for value in ASKING if asks(value))
        with pytest.raises(UnsupportedParameter) as caught:
            await requests_for(route, {name: value})
        assert caught.value.param == name


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: route.name)
async def test_what_is_ignored_changes_nothing(route: BodyRoute) -> None:
    ignored = route.ignored - SCHEMAS[route.schema]["properties"].keys()
    assert await requests_for(route, dict.fromkeys(ignored, "x")) == await requests_for(route, {})


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: route.name)
async def test_a_default_is_the_same_as_nothing(route: BodyRoute) -> None:
    plain = await requests_for(route, {})
    num_tried = 0
    taken = SCHEMAS[route.schema]["properties"]
    for key, value in DEFAULTS.items():
        of_route, _, name = key.rpartition(" ")
        outer, _, inner = name.partition(".")
        if of_route not in ("", route.name) or outer not in taken:
            continue
        if not of_route and any(key.startswith(f"{route.name} {name}") for key in DEFAULTS):
            continue
        fields = {outer: {inner: value}} if inner else {outer: value}
        assert await requests_for(route, fields) == plain, key
        num_tried += 1
    assert num_tried
