"""Embeddings: bodies to requests with pooling, and vectors back in the order of the inputs."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai import AsyncOpenAI

import jetflock.client.call
from frontend.fields.pooled_fields import MAX_INPUTS, MAX_STREAMED_INPUTS
from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.embeddings.pooled_inputs import PooledInputs
from jetflock import Client
from shared.errors import RequestError
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import PoolingKind, PoolingParams
from shared.protocol.token_ids import unpack_token_ids
from tests.eventually import eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.tiny_model import make_tokenizer

EMBEDDING = EmbeddingCard(4, is_matryoshka=True, matryoshka_dimensions=(2, 4))


def vector_of(request: GenerateRequest) -> list[float]:
    """Sum, length and ends of the ids: no two inputs of these tests have the same."""
    ids = unpack_token_ids(request.prompt_ids)
    return [sum(ids) / 3, float(len(ids)), float(ids[0]), float(ids[-1])]


def finish_of(request: GenerateRequest) -> Finish:
    return Finish(FinishReason.STOP, embedding=struct.pack("<4f", *vector_of(request)))


def late_first(request: GenerateRequest) -> Script:
    """The later the input, the earlier its answer."""
    delay_s = 0.05 * (request.reply.num_choices - request.reply.choice_idx)
    return Script([""], finish_of(request), delay_s=delay_s)


@pytest.fixture
async def running(stack: Stack) -> RunningFrontend:
    await put_card(stack, embedding=EMBEDDING)
    stack.answer(late_first)
    return await stack.start_frontend()


async def put_card(stack: Stack, **changes: Any) -> None:
    card = msgspec.structs.replace(stack.card, **changes)
    await stack.cluster.bucket(stack.cluster.subjects.models_bucket).put(card.pool, encode(card))


@pytest.fixture
async def client(running: RunningFrontend) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        yield client


def expected(text: str) -> list[float]:
    ids = make_tokenizer().encode(text).ids
    numbers = [sum(ids) / 3, float(len(ids)), float(ids[0]), float(ids[-1])]
    return list(struct.unpack("<4f", struct.pack("<4f", *numbers)))


@pytest.mark.integration
async def test_openais_client_gets_a_vector_for_each_input_in_order(
    client: AsyncOpenAI, stack: Stack
) -> None:
    stack.backend.runs.clear()
    answer = await client.embeddings.create(model="tiny", input=["!", "!!", "!#!"])  # as base64
    assert [item.index for item in answer.data] == [0, 1, 2]
    num_tokens = [run.reply.num_prompt_tokens for run in stack.backend.runs.values()]
    assert [item.embedding[1] for item in answer.data] == [2.0, 3.0, 4.0]
    assert (answer.object, answer.model) == ("list", "tiny")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(num_tokens) == 9
    as_numbers = await client.embeddings.create(
        model="tiny", input=["!", "!!", "!#!"], encoding_format="float"
    )
    assert [item.embedding for item in as_numbers.data] == [item.embedding for item in answer.data]
    requests = [run.request for run in stack.backend.runs.values()]
    assert {request.pooling for request in requests} == {PoolingParams(PoolingKind.LAST)}


@pytest.mark.integration
async def test_base64_is_little_endian_float32(running: RunningFrontend) -> None:
    body = {"model": "tiny", "input": [5, 6, 7], "encoding_format": "base64"}
    async with running.client() as http:
        answer = (await http.post("/v1/embeddings", json=body)).json()
    assert base64.b64decode(answer["data"][0]["embedding"]) == struct.pack("<4f", 6, 3, 5, 7)


@pytest.mark.integration
async def test_a_list_of_lists_of_ids(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="tiny", input=[[5, 6, 7], [9]])
    assert [item.embedding for item in answer.data] == [[6, 3, 5, 7], [3, 1, 9, 9]]


@pytest.mark.integration
async def test_a_failed_input_fails_the_request_and_ends_the_others(
    client: AsyncOpenAI, stack: Stack
) -> None:
    def script(request: GenerateRequest) -> Script:
        if request.reply.choice_idx == 1:
            return Script([], Finish(FinishReason.ERROR, message="out of pages"))
        return Script(["x"], never_finish=True)

    stack.answer(script)
    with pytest.raises(openai.InternalServerError, match="out of pages"):
        await client.embeddings.create(model="tiny", input=["a", "b", "c"])
    await eventually(lambda: len(stack.backend.cancelled) == 2, 5)


@pytest.mark.integration
async def test_a_result_without_a_vector_is_an_error(client: AsyncOpenAI, stack: Stack) -> None:
    stack.say(finish=Finish(FinishReason.LENGTH))
    with pytest.raises(openai.InternalServerError, match="makes no embeddings"):
        await client.embeddings.create(model="tiny", input="a")


@pytest.mark.integration
async def test_a_client_that_leaves_ends_all_its_inputs(
    running: RunningFrontend, stack: Stack
) -> None:
    stack.answer(lambda request: Script(["x"], never_finish=True))
    async with running.client() as http:
        post = http.post("/v1/embeddings", json={"model": "tiny", "input": ["a", "b", "c"]})
        task = asyncio.create_task(post)
        await eventually(lambda: len(stack.backend.runs) == 3)
        task.cancel()
        await asyncio.wait([task])
    await eventually(lambda: len(stack.backend.cancelled) == 3, 5)
    assert sorted(stack.backend.cancelled) == sorted(stack.backend.runs)


@pytest.mark.integration
async def test_an_answer_can_be_fetched_again_on_another_frontend(
    running: RunningFrontend, stack: Stack
) -> None:
    body = {"model": "tiny", "input": ["a", "bc"], "encoding_format": "base64"}
    other = await stack.start_frontend()
    async with running.client() as http, other.client() as other_http:
        first = await http.post("/v1/embeddings", json=body)
        rid = first.headers["x-request-id"]
        again = await other_http.get(f"/v1/streams/{rid}?stream=false")
        assert again.json() == first.json()
        events = await _events(other_http, "GET", f"/v1/streams/{rid}")
    assert events[-2:] == [{**first.json(), "data": []}, None]
    assert sorted(events[:-2], key=lambda event: event["index"]) == first.json()["data"]


@pytest.mark.integration
async def test_a_stream_has_an_event_for_each_input(running: RunningFrontend) -> None:
    body = {"model": "tiny", "input": ["a", "bc"], "stream": True}
    async with running.client() as http:
        *vectors, last, done = await _events(http, "POST", "/v1/embeddings", json=body)
    assert [event["index"] for event in vectors] == [1, 0]  # as they are ready
    assert vectors[0]["embedding"] == expected("bc")
    assert (last["data"], last["usage"]["prompt_tokens"], done) == ([], 5, None)


async def _events(http: httpx.AsyncClient, method: str, url: str, **options: Any) -> list[Any]:
    """JSON of each event; None for [DONE]."""
    async with http.stream(method, url, **options) as response:
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [None if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@pytest.mark.integration
async def test_over_nats(running: RunningFrontend, stack: Stack) -> None:
    answer = await ask(stack, "embed", {"model": "tiny", "input": ["a", "bc"]})
    vectors = [item["embedding"] for item in json.loads(answer.data)["data"]]
    assert vectors == [expected("a"), expected("bc")]
    messages = await ask_stream(stack, "embed", {"model": "tiny", "input": "a", "stream": True})
    assert json.loads(messages[1].data)["embedding"] == expected("a")


@pytest.mark.integration
async def test_an_answer_above_max_payload_is_told_to_be_streamed(
    running: RunningFrontend, stack: Stack
) -> None:
    large = struct.pack("<60000f", *range(60000))  # as numbers 1.2 MB in all
    stack.answer(lambda request: Script([], Finish(FinishReason.STOP, embedding=large)))
    body = {"model": "tiny", "input": ["a", "b", "c"], "encoding_format": "float"}
    refused = await ask(stack, "embed", body)
    assert (refused.headers or {})["Nats-Service-Error-Code"] == "413"
    message = json.loads(refused.data)["error"]["message"]
    assert "'stream': true" in message
    rid = (refused.headers or {})["Jetflock-Request-Id"]
    assert f"'resume' for {rid}" in message
    again = await ask_stream(stack, "resume", {"rid": rid})
    assert [len(json.loads(each.data)["embedding"]) for each in again[1:4]] == [60000] * 3
    messages = await ask_stream(stack, "embed", {**body, "stream": True})
    assert [len(json.loads(message.data)["embedding"]) for message in messages[1:4]] == [60000] * 3


@pytest.mark.integration
async def test_jetflocks_client(
    running: RunningFrontend, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetflock.client.call, "ITEMS_AT_ONCE", 2)
    async with Client(stack.server.url) as client:
        one = await client.embed_async("a")
        assert (one.vectors, one.prompt_tokens) == ((expected("a"),), 2)
        assert (await client.embed_async([5, 6, 7])).vectors == ([6, 3, 5, 7],)
        many = await client.embed_async(["a", "bc", "d", "ef", "g"], model="tiny", normalize=False)
        assert many.vectors == tuple(map(expected, ["a", "bc", "d", "ef", "g"]))
        assert many.prompt_tokens == 12
        with pytest.raises(jetflock.errors.ApiError, match="is empty"):
            await client.embed_async(["a", ""])
    assert not stack.backend.cancelled


@pytest.mark.integration
async def test_a_model_for_embeddings_alone_generates_nothing(stack: Stack) -> None:
    await put_card(stack, embedding=EMBEDDING, can_generate=False)
    running = await stack.start_frontend()
    async with running.client() as http:
        answer = await http.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
        models = (await http.get("/v1/models")).json()
    assert answer.status_code == 400
    assert "generates nothing" in answer.json()["error"]["message"]
    assert models["data"][0]["tasks"] == ["embed"]


# Bodies

SAYS_HI = [{"role": "user", "content": "Hi"}]
WITH_IMAGE = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,"}}]}
]


async def requests_of(body: dict[str, Any], **card: Any) -> list[GenerateRequest]:
    fields = {"max_context_len": 8, "embedding": EMBEDDING, **card}
    directory = make_directory("tiny", **fields)
    requests = EmbeddingRequests(
        PooledInputs(directory, PromptEncoder(), AllRequests(directory).chat)
    )
    job = await requests.job({"model": "tiny", **body}, Caller())
    made = job.requests(
        "0" * 32,
        Caller(),
        created=1,
        subject="s",
        frontend_id="f",
        max_logprob_bytes=0,
        cache_salt=job.sampling.cache_salt,
    )
    return [each.request for each in made]


async def test_what_the_body_says_goes_before_the_models_way() -> None:
    card = EmbeddingCard(4, PoolingKind.MEAN, normalize=False, is_matryoshka=True)
    (request,) = await requests_of({"input": "abcdefg"}, embedding=card)  # fills the context
    assert request.pooling == PoolingParams(PoolingKind.MEAN, normalize=False)
    body = {"input": "a", "pooling": "last", "normalize": True, "dimensions": 3}
    (request,) = await requests_of({**body, "priority": 2, "cache_salt": "s"}, embedding=card)
    assert request.pooling == PoolingParams(PoolingKind.LAST, normalize=True, dimensions=3)
    assert (request.priority, request.cache_salt) == (2, "s")


async def test_a_chat_is_embedded_as_the_template_writes_it() -> None:
    """Which is what a chat asks the model, but for what begins its answer."""
    directory = make_directory("tiny", embedding=EMBEDDING)
    for asks in ({}, {"add_generation_prompt": True}):
        (request,) = await requests_of({"messages": SAYS_HI} | asks, max_context_len=64)
        chat = {"model": "tiny", "messages": SAYS_HI, "add_generation_prompt": False} | asks
        job = await AllRequests(directory).chat.job(chat, Caller())
        assert unpack_token_ids(request.prompt_ids) == job.prompts[0].token_ids
        assert request.pooling == PoolingParams(PoolingKind.LAST)


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({}, 400, "input", "required"),
        ({"input": []}, 400, "input", "is empty"),
        ({"input": ""}, 400, "input", "is empty"),
        ({"input": ["a", ""]}, 400, "input[1]", "is empty"),
        ({"input": [[1], []]}, 400, "input[1]", "is empty"),
        ({"input": [["a"]]}, 400, "input", "list of"),
        ({"input": [[1], [2, 9999]]}, 400, "input[1]", "9999"),
        ({"input": ["a", "abcdefgh"]}, 400, "input[1]", "'input[1]' has 9 tokens"),
        ({"input": "abcdefgh"}, 400, "input", "'input' has 9 tokens"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, 400, "input", "2049"),
        ({"input": "a", "messages": SAYS_HI}, 400, "input", "exclude each other"),
        ({"input": "a", "add_generation_prompt": True}, 400, "add_generation_prompt", "without"),
        ({"messages": []}, 400, "messages", "at least one"),
        (
            {"messages": SAYS_HI, "truncate_prompt_tokens": 4},
            400,
            "truncate_prompt_tokens",
            "exclude",
        ),
        ({"messages": WITH_IMAGE}, 400, "messages", "cannot be embedded"),
        ({"messages": [{"role": "user", "content": "x" * 90}]}, 400, "messages", "tokens"),
        ({"input": ["a"] * (MAX_STREAMED_INPUTS + 1), "stream": True}, 400, "input", "'stream'"),
        ({"input": "a", "dimensions": 3}, 400, "dimensions", "2, 4"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions", "0"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", "int8"),
        ({"input": "a", "pooling": "cls"}, 400, "pooling", "cls"),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "is 0"),
        ({"input": "a", "truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens", "-2"),
        ({"input": "a", "model": "other"}, 404, "model", "other"),
    ],
)
async def test_refused(body: dict[str, Any], status: int, param: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        await requests_of(body)
    error = caught.value
    assert (error.status_code, error.param) == (status, param), error.message
    assert words in error.message


async def test_a_model_that_embeds_not_or_in_full_only() -> None:
    with pytest.raises(RequestError, match="makes no embeddings"):
        await requests_of({"input": "a"}, embedding=None)
    with pytest.raises(RequestError, match="cannot be shortened"):
        await requests_of({"input": "a", "dimensions": 2}, embedding=EmbeddingCard(4))
    (request,) = await requests_of({"input": "a", "dimensions": 4}, embedding=EmbeddingCard(4))
    assert request.pooling == PoolingParams(PoolingKind.LAST, dimensions=4)


async def test_an_encoder_pools_in_its_own_way() -> None:
    card = EmbeddingCard(4, PoolingKind.ENCODED)
    (request,) = await requests_of({"input": "a"}, embedding=card)
    assert request.pooling == PoolingParams(PoolingKind.ENCODED)
    with pytest.raises(RequestError, match="'pooling' is 'mean'"):
        await requests_of({"input": "a", "pooling": "mean"}, embedding=card)


async def test_an_input_that_is_too_long_keeps_its_beginning() -> None:
    async def ids_of(value: Any, max_tokens: int | None) -> list[list[int]]:
        body = {"input": value, "truncate_prompt_tokens": max_tokens}
        return [list(unpack_token_ids(request.prompt_ids)) for request in await requests_of(body)]

    whole = make_tokenizer().encode("abcdefghij").ids  # begins with a special token
    assert await ids_of("abcdefghij", 4) == [whole[:4]]
    assert await ids_of(["abcdefghij", "a"], -1) == [whole[:8], whole[:2]]
    assert await ids_of("abc", 99) == [whole[:4]]
    assert await ids_of("abc", 1) == [whole[:1]]
    assert await ids_of([[5, 6, 7], [8]], 2) == [[5, 6], [8]]
    assert await ids_of([5] * 20, -1) == [[5] * 8]
    with pytest.raises(RequestError, match="11 tokens"):
        await ids_of("abcdefghij", None)
    with pytest.raises(RequestError, match="11 tokens"):
        await ids_of("abcdefghij", 99)
