"""Answers and events have the fields that their structs say: no others, and none is missing."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from frontend.cluster.load_answer import Loads
from frontend.openapi.document import openapi_document
from frontend.openapi.schemas.struct_schemas import EVENTS
from frontend.routes.model_object import Model, ModelList
from frontend.surfaces.chat.chat_answer import ChatCompletion
from frontend.surfaces.completions.completion_answer import Completion
from frontend.surfaces.embeddings.embedding_answer import EmbeddingList
from frontend.surfaces.generate.generate_answer import GeneratedText
from frontend.surfaces.scores.score_answer import Ranking, ScoreList
from frontend.surfaces.tokens.token_answers import (
    Detokenized,
    Props,
    Templated,
    Tokenized,
    TokenizerInfo,
)
from frontend.text.wire_struct import WireStruct
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import EmbeddingCard, ScoreCard
from shared.protocol.reply import ScoreMethod
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.sse import sse_events
from tests.frontend.surfaces.test_tools import BODY as TOOLS
from tests.frontend.surfaces.test_tools import STYLES, TEXT, pieces

pytestmark = pytest.mark.integration

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
TEXTS: dict[str, Any] = {"model": "tiny", "prompt": ["Hi", "Ho"], "max_tokens": 8}
SCHEMAS = openapi_document("0")["components"]["schemas"]
TOKEN_IDS = {"return_token_ids": True}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def check(kind: type[WireStruct], told: Any) -> None:
    """By the struct, and by the document that is made of it."""
    assert json.loads(msgspec.json.encode(msgspec.convert(told, kind))) == told
    root = {"$ref": f"#/components/schemas/{kind.__name__}", "components": {"schemas": SCHEMAS}}
    Draft202012Validator(root).validate(told)


def check_event(kind: type[WireStruct], told: Any) -> None:
    kinds = EVENTS.get(kind, (kind,))
    names = {one: {field.encode_name for field in msgspec.structs.fields(one)} for one in kinds}
    (of_event,) = [one for one in kinds if told.keys() <= names[one]]
    check(of_event, told)


async def check_both(
    running: RunningFrontend, path: str, body: dict[str, Any], kind: type[WireStruct]
) -> None:
    """The whole answer, and each event."""
    async with running.client() as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        for told in answer.json() if isinstance(answer.json(), list) else [answer.json()]:
            check(kind, told)
        if "prompt_logprobs" in body or "use_beam_search" in body:
            return  # no event has a place for them
        streamed = {**body, **(USAGE if path.startswith("/v1/c") else {}), "stream": True}
        async with http.stream("POST", path, json=streamed) as response:
            assert response.status_code == 200, await response.aread()
            events = [event async for event in sse_events(response)]
        assert len(events) > 2
        for event in events:
            if event.data != "[DONE]":
                check_event(kind, event.json)


async def test_chats(stack: Stack) -> None:
    running = await stack.start_frontend(**STYLES)
    for fields in (
        {"n": 2, **TOKEN_IDS},
        {"logprobs": True, "top_logprobs": 2},
        {"prompt_logprobs": 1, **TOKEN_IDS},
        {"use_beam_search": True, "n": 2, **TOKEN_IDS},
    ):
        await check_both(running, "/v1/chat/completions", {**CHAT, **fields}, ChatCompletion)
    stack.say(*pieces(TEXT), twice=True)
    body = {**TOOLS, "logprobs": True, **TOKEN_IDS}
    await check_both(running, "/v1/chat/completions", body, ChatCompletion)


async def test_completions_and_generate(stack: Stack) -> None:
    running = await stack.start_frontend()
    for fields in (
        {"n": 2, "best_of": 2, "echo": True, **TOKEN_IDS},
        {"logprobs": 2, "echo": True},
        {"prompt_logprobs": 1, **TOKEN_IDS},
        {"use_beam_search": True, "n": 2, **TOKEN_IDS},
    ):
        await check_both(running, "/v1/completions", {**TEXTS, **fields}, Completion)
    for body in (
        {"text": "Hi"},
        {"text": ["Hi", "Ho"], "return_logprob": True, "logprob_start_len": 0},
        {"text": "Hi", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
    ):
        await check_both(running, "/generate", body, GeneratedText)


async def test_what_has_no_text(stack: Stack) -> None:
    card = msgspec.structs.replace(
        stack.card, embedding=EmbeddingCard(2), score=ScoreCard(ScoreMethod.CLASSIFIER)
    )
    await stack.cluster.bucket(stack.cluster.subjects.models_bucket).put(card.pool, encode(card))
    stack.say("", finish=Finish(FinishReason.STOP, embedding=struct.pack("<2f", 0.25, 0.5)))
    running = await stack.start_frontend()
    for format_ in ("float", "base64"):
        body = {"model": "tiny", "input": ["a", "b"], "encoding_format": format_}
        await check_both(running, "/v1/embeddings", body, EmbeddingList)
    body = {"model": "tiny", "text_1": "q", "text_2": ["a", "b"]}
    await check_both(running, "/v1/score", body, ScoreList)
    ranked = {"model": "tiny", "query": "q", "documents": ["a", "b"]}
    for with_texts in (False, True):
        await check_both(running, "/v1/rerank", {**ranked, "return_documents": with_texts}, Ranking)


async def test_what_is_told_of_models_and_loads(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as http:
        for path, kind in (
            ("/v1/models", ModelList),
            ("/v1/models/tiny", Model),
            ("/v1/loads", Loads),
            ("/tokenizer_info", TokenizerInfo),
            ("/props", Props),
        ):
            check(kind, (await http.get(path)).json())
        for path, body, answer in (
            ("/tokenize", {"prompt": "Hi"}, Tokenized),
            ("/tokenize", {"prompt": "Hi", "return_token_strs": True}, Tokenized),
            ("/detokenize", {"tokens": [65, 66]}, Detokenized),
            ("/apply-template", {"messages": MESSAGES}, Templated),
        ):
            check(answer, (await http.post(path, json=body)).json())


def test_an_answer_that_says_more_is_found() -> None:
    told = json.loads('{"prompt": "x", "extra": 1}')
    with pytest.raises(AssertionError):
        check(Detokenized, told)
