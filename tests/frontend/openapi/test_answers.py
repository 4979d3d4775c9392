"""Answers and events have the fields that their structs say: no others, and none is missing."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from frontend.cluster.cluster_answer import RequestPath
from frontend.cluster.loads import Loads
from frontend.inference.inference import Aborted
from frontend.openapi.answers import EVENTS
from frontend.routes.model_object import Model, ModelList
from frontend.routes.status_routes import Version
from frontend.stored.erasing.erasing_service import Erased
from frontend.surfaces.anthropic.message_answer import MessageError, MessageTokens
from frontend.surfaces.chat.chat_answer import ChatCompletion
from frontend.surfaces.completions.completion_answer import Completion
from frontend.surfaces.embeddings.embedding_answer import EmbeddingList
from frontend.surfaces.generate.generate_answer import GeneratedText
from frontend.surfaces.responses.event_answer import EVENT_KINDS
from frontend.surfaces.responses.response_answer import InputItems, InputTokens, ResponseDeleted
from frontend.surfaces.scores.score_answer import Ranking, ScoreList
from frontend.surfaces.tokens import (
    Detokenized,
    Props,
    Templated,
    Tokenized,
    TokenizerInfo,
)
from frontend.text.event_writer import ErrorAnswer
from frontend.text.wire_struct import WireStruct
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import EmbeddingCard, ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.status.health import Checkup, Health, live_answer, ready_answer
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.response_events import events_of
from tests.frontend.sse import sse_events
from tests.frontend.surfaces.test_answer_bytes import ITEMS
from tests.frontend.surfaces.test_response_tools import NOW, WEATHER
from tests.frontend.surfaces.test_tools import BODY as TOOLS
from tests.frontend.surfaces.test_tools import STYLES, TEXT, pieces
from tests.frontend.told_answers import (
    check_answer,
    check_document,
    check_items,
    check_response_answer,
)

pytestmark = pytest.mark.integration

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
TEXTS: dict[str, Any] = {"model": "tiny", "prompt": ["Hi", "Ho"], "max_tokens": 8}
RESPONSE_EVENTS = {kind.event_name(): kind for kind in EVENT_KINDS}
RESPONSE_TOOLS = [WEATHER, NOW]
TOKEN_IDS = {"return_token_ids": True}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def check_event(kind: type[WireStruct], told: Any) -> None:
    kinds = EVENTS.get(kind, (kind,))
    names = {one: {field.encode_name for field in msgspec.structs.fields(one)} for one in kinds}
    (of_event,) = [one for one in kinds if told.keys() <= names[one]]
    check_answer(of_event, told)


def check_response_event(told: dict[str, Any]) -> None:
    """Items are of kinds that only their types tell apart."""
    kind = RESPONSE_EVENTS[told["type"]]
    check_document(kind, told)
    assert told.keys() == {field.name for field in msgspec.structs.fields(kind)} | {"type"}
    if "response" in told:
        check_response_answer(told["response"])
    elif "item" in told:
        check_items([told["item"]])
    else:
        check_answer(kind, told)


async def check_both(
    running: RunningFrontend, path: str, body: dict[str, Any], kind: type[WireStruct]
) -> None:
    """The whole answer, and each event."""
    async with running.client() as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        for told in answer.json() if isinstance(answer.json(), list) else [answer.json()]:
            check_answer(kind, told)
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
            check_answer(kind, (await http.get(path)).json())
        for path, body, answer in (
            ("/tokenize", {"prompt": "Hi"}, Tokenized),
            ("/tokenize", {"prompt": "Hi", "return_token_strs": True}, Tokenized),
            ("/detokenize", {"tokens": [65, 66]}, Detokenized),
            ("/apply-template", {"messages": MESSAGES}, Templated),
        ):
            check_answer(answer, (await http.post(path, json=body)).json())


async def test_responses(stack: Stack) -> None:
    running = await stack.start_frontend(**STYLES)
    stack.say(*pieces(TEXT), twice=True)
    path = "/v1/responses"
    items = [{"role": "user", "content": "Hi"}, *ITEMS[1:]]
    body = {"model": "tiny", "input": items, "tools": RESPONSE_TOOLS, "top_logprobs": 1}
    async with running.client() as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        whole = answer.json()
        check_response_answer(whole)
        assert {item["type"] for item in whole["output"]} == {
            "reasoning",
            "message",
            "function_call",
        }
        kept = f"{path}/{whole['id']}"
        check_response_answer((await http.get(kept)).json())
        counted = (await http.post(f"{path}/input_tokens", json=body)).json()
        check_answer(InputTokens, counted)
        assert counted["input_tokens"] == whole["usage"]["input_tokens"]
        page = (await http.get(f"{kept}/input_items")).json()
        check_answer(InputItems, page)
        check_items(page["data"])
        assert len(page["data"]) == len(items)
        check_answer(ResponseDeleted, (await http.delete(kept)).json())
        check_answer(ErrorAnswer, (await http.get(kept)).json())
        async with http.stream("POST", path, json={**body, "stream": True}) as response:
            events = await events_of(response)
    for event in events:
        check_response_event(event)
    # One that fails or is cut ends otherwise.
    assert {event["type"] for event in events} == set(RESPONSE_EVENTS) - {
        "response.incomplete",
        "response.failed",
    }


async def test_what_is_told_of_requests_and_of_this_server(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as http:
        started = await http.post("/v1/completions", json={**TEXTS, "prompt": "Hi"})
        rid = started.headers["x-request-id"]
        check_answer(RequestPath, (await http.get(f"/v1/streams/{rid}/path")).json())
        check_answer(Aborted, (await http.post("/abort_request", json={"rid": rid})).json())
        check_answer(Erased, (await http.delete(f"/v1/streams/{rid}")).json())
        check_answer(Version, (await http.get("/version")).json())
        check_answer(Health, (await http.get("/health")).json())
        answer = await http.post("/v1/messages/count_tokens", json=CHAT)
        check_answer(MessageTokens, answer.json())
        check_answer(MessageError, (await http.post("/v1/messages", json={})).json())


def test_a_probe_is_told_why() -> None:
    told = ready_answer(Checkup(not_ready=("it is starting",)))
    assert told.body == b'{"status":"not ready","why":["it is starting"]}'
    check_answer(Health, msgspec.json.decode(told.body))
    assert live_answer(Checkup()).body == b'{"status":"live"}'


def test_an_answer_that_says_more_is_found() -> None:
    told = {"prompt": "x", "extra": 1}
    with pytest.raises(AssertionError):
        check_answer(Detokenized, told)
