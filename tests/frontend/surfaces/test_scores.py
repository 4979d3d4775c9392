"""Scores and rankings: bodies to one request a pair, and numbers back in order."""

from __future__ import annotations

import json
import struct
from typing import Any

import httpx
import msgspec
import pytest
from tokenizers.processors import BertProcessing, TemplateProcessing

import jetflock.client.call
from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.routes.api_route import RERANK_PATHS, SCORE_PATHS
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.embeddings.pooled_inputs import PooledInputs
from frontend.surfaces.scores.pair_layout import INSTRUCTION, JUDGE
from frontend.surfaces.scores.rerank_request import RerankRequests
from frontend.surfaces.scores.score_request import ScoreRequests
from jetflock import Client
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import PoolingKind, PoolingParams
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import AllRequests, FakeCatalog, make_directory
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.tiny_model import BOS, IM_END, make_card, make_tokenizer

PAIR = {"text_1": "q", "text_2": "a"}
CLASSIFIER = ScoreCard(ScoreMethod.CLASSIFIER)
ENCODER = ScoreCard(ScoreMethod.CLASSIFIER, is_encoder=True)
YES_NO = ScoreCard(ScoreMethod.YES_NO, answer_ids=(88, 77))
ROLES = (
    "{% for message in messages %}{% if message['role'] in ('query', 'document') %}"
    "{{ message['role'] }}={{ message['content'] }};{% else %}{{ message['content'] }}!{% endif %}"
    "{% endfor %}"
)


def score_of(prompt_ids: list[int]) -> float:
    """No two pairs of these tests have the same."""
    number: float = struct.unpack("<f", struct.pack("<f", (sum(prompt_ids) % 997) / 997))[0]
    return number


def score(request: GenerateRequest) -> Script:
    number = score_of(unpack_token_ids(request.prompt_ids))
    embedding = struct.pack("<2f", number, 1 - number)
    return Script([""], Finish(FinishReason.STOP, embedding=embedding))


@pytest.fixture
async def running(stack: Stack) -> RunningFrontend:
    card = msgspec.structs.replace(stack.card, score=YES_NO)
    await stack.cluster.bucket(stack.cluster.subjects.models_bucket).put(card.pool, encode(card))
    stack.answer(score)
    return await stack.start_frontend()


def asked(query: str, text: str, instruction: str = INSTRUCTION) -> str:
    return (
        f"<|im_start|>system\n{JUDGE}<|im_end|>\n"
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def ids_of(text: str) -> list[int]:
    ids: list[int] = make_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def expected(query: str, text: str) -> float:
    return score_of(ids_of(asked(query, text)))


@pytest.mark.integration
async def test_every_route_and_every_shape(running: RunningFrontend, stack: Stack) -> None:
    async with running.client() as http:
        for path in SCORE_PATHS:
            body: dict[str, Any] = {"model": "tiny", "text_1": "q", "text_2": ["a", "bc"]}
            answer = (await http.post(path, json=body)).json()
            assert [item["score"] for item in answer["data"]] == [
                expected("q", "a"),
                expected("q", "bc"),
            ]
            assert [item["index"] for item in answer["data"]] == [0, 1]
            assert (answer["object"], answer["score_method"]) == ("list", "yes_no")
            num_tokens = len(ids_of(asked("q", "a"))) + len(ids_of(asked("q", "bc")))
            assert answer["usage"] == {
                "prompt_tokens": num_tokens,
                "total_tokens": num_tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
        body = {"model": "tiny", "queries": ["q", "r"], "items": ["a", "b"]}
        answer = (await http.post("/v1/score", json=body)).json()
        scores = [item["score"] for item in answer["data"]]
        assert scores == [expected("q", "a"), expected("r", "b")]
        documents: list[Any] = ["a", {"text": "b"}, "a long text", "d"]
        texts = ["a", "b", "a long text", "d"]
        best = sorted(range(4), key=lambda idx: -expected("q", texts[idx]))
        body = {"model": "tiny", "query": "q", "documents": documents}
        for path in RERANK_PATHS:
            answer = (await http.post(path, json=body)).json()
            assert [
                (result["index"], result["relevance_score"]) for result in answer["results"]
            ] == [(idx, expected("q", texts[idx])) for idx in best]
            assert "document" not in answer["results"][0]
        told = {**body, "top_n": 2, "return_documents": True}
        first = await http.post("/v1/rerank", json=told)
        assert [(result["index"], result["document"]) for result in first.json()["results"]] == [
            (idx, {"text": texts[idx]}) for idx in best[:2]
        ]
        rid = first.headers["x-request-id"]
        async with (await stack.start_frontend()).client() as other:
            again = await other.get(f"/v1/streams/{rid}?stream=false")
            assert again.json() == first.json()
            assert (await other.get(f"/v1/streams/{rid}")).status_code == 400
        models = (await http.get("/v1/models")).json()["data"]
    assert (models[0]["tasks"], models[0]["score_method"]) == (["generate", "score"], "yes_no")


@pytest.mark.integration
async def test_streams_nats_and_the_python_client(
    running: RunningFrontend, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    body: dict[str, Any] = {"model": "tiny", "query": "q", "documents": ["a", "bc"]}
    async with running.client() as http:
        *results, last, done = await _events(http, "/v1/rerank", {**body, "stream": True})
        whole = (await http.post("/v1/rerank", json=body)).json()
    assert sorted(result["index"] for result in results) == [0, 1]
    assert (last["results"], done) == (whole["results"], None)
    answer = json.loads((await ask(stack, "rerank", body)).data)
    assert answer["results"] == whole["results"]
    body = {"model": "tiny", "text_1": "q", "text_2": "a", "stream": True}
    messages = await ask_stream(stack, "score", body)
    assert json.loads(messages[1].data)["score"] == expected("q", "a")
    monkeypatch.setattr(jetflock.client.call, "ITEMS_AT_ONCE", 2)
    texts = ["a", "bc", "def", "gh", "x"]
    scores = [expected("q", text) for text in texts]
    async with Client(stack.server.url) as client:
        given = await client.score_async("q", texts)
        assert given.scores == tuple(scores)
        assert given.prompt_tokens == sum(len(ids_of(asked("q", text))) for text in texts)
        assert (await client.score_async("q", "a")).scores == (scores[0],)
        pairs = await client.score_async(["q", "r", "q"], ["a", "b", "c"], model="tiny")
        assert pairs.scores == (scores[0], expected("r", "b"), expected("q", "c"))
        ranking = await client.rerank_async("q", texts, top_n=3)
        best = sorted(range(5), key=lambda idx: -scores[idx])[:3]
        assert [(each.index, each.score, each.document) for each in ranking.results] == [
            (idx, scores[idx], texts[idx]) for idx in best
        ]
        with pytest.raises(jetflock.errors.ApiError, match="is empty"):
            await client.rerank_async("q", [])
        with pytest.raises(ValueError, match="2 texts cannot be paired with 1"):
            await client.score_async(["q", "r"], "a")
    assert not stack.backend.cancelled


async def _events(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> list[Any]:
    """JSON of each event; None for [DONE]."""
    async with http.stream("POST", url, json=body) as response:
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [None if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@pytest.mark.integration
async def test_the_wrong_model_is_told_what_it_is_for(stack: Stack) -> None:
    card = msgspec.structs.replace(stack.card, score=CLASSIFIER, can_generate=False)
    await stack.cluster.bucket(stack.cluster.subjects.models_bucket).put(card.pool, encode(card))
    running = await stack.start_frontend()
    stack.say(finish=Finish(FinishReason.STOP))
    async with running.client() as http:
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        refused = await http.post("/v1/chat/completions", json=chat)
        assert refused.status_code == 400
        assert "use /v1/score or /v1/rerank" in refused.json()["error"]["message"]
        body = {"model": "tiny", "text_1": "q", "text_2": "a"}
        old_worker = await http.post("/v1/score", json=body)
        assert old_worker.status_code == 500
        assert "no embeddings or scores" in old_worker.json()["error"]["message"]


# Bodies


async def requests_of(
    body: dict[str, Any], card: ScoreCard | None = YES_NO, **fields: Any
) -> list[GenerateRequest]:
    directory = fields.pop("directory", None) or make_directory("tiny", score=card, **fields)
    kind = RerankRequests if "query" in body or "documents" in body else ScoreRequests
    job = await kind(directory, PromptEncoder()).job({"model": "tiny", **body}, Caller())
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


async def prompts_of(body: dict[str, Any], **fields: Any) -> list[list[int]]:
    return [unpack_token_ids(each.prompt_ids) for each in await requests_of(body, **fields)]


async def test_a_decoder_is_asked_in_its_chat_template() -> None:
    body = {"text_1": "q", "text_2": ["a", "b"], "priority": 2, "cache_salt": "s"}
    first, second = await requests_of(body)
    assert unpack_token_ids(first.prompt_ids) == ids_of(asked("q", "a"))
    assert unpack_token_ids(second.prompt_ids) == ids_of(asked("q", "b"))
    assert first.pooling == PoolingParams(PoolingKind.LOGITS, token_ids=(88, 77))
    assert (first.priority, first.cache_salt) == (2, "s")
    (prompt,) = await prompts_of({"text_1": "q", "text_2": "a", "instruction": "Is it so?"})
    assert prompt == ids_of(asked("q", "a", "Is it so?"))


@pytest.mark.parametrize("card", [YES_NO, CLASSIFIER])
async def test_a_template_with_roles_of_its_own_is_shown_the_pair(card: ScoreCard) -> None:
    body = {"text_1": "q", "text_2": "a"}
    assert await prompts_of(body, card=card, chat_template=ROLES) == [ids_of("query=q;document=a;")]
    body["instruction"] = "Judge"
    (prompt,) = await prompts_of(body, card=card, chat_template=ROLES)
    assert prompt == ids_of("Judge!query=q;document=a;")


@pytest.mark.parametrize("without_system", ["{{ raise_exception('no system role') }}", ""])
async def test_a_template_without_system_messages_is_asked_in_the_users(
    without_system: str,
) -> None:
    template = (
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        + without_system
        + "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    )
    (prompt,) = await prompts_of(PAIR, chat_template=template)
    assert prompt == ids_of(f"{JUDGE}\n\n<Instruct>: {INSTRUCTION}\n<Query>: q\n<Document>: a")


def pair_directory(processor: Any, score: ScoreCard = CLASSIFIER) -> ModelDirectory:
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processor
    bundle = TokenizerBundle({"tokenizer.json": tokenizer.to_str().encode()})
    card = make_card(bundle, score=score)
    return ModelDirectory(FakeCatalog(bundle, card))  # type: ignore[arg-type]


PROCESSORS = {
    "template": TemplateProcessing(
        single="<s> $A", pair="<s> $A <|im_end|> $B:1 <|im_end|>:1",
        special_tokens=[("<s>", BOS), ("<|im_end|>", IM_END)],
    ),
    "bert": BertProcessing(("<|im_end|>", IM_END), ("<s>", BOS)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
async def test_a_classifier_reads_the_tokenizers_pair(name: str) -> None:
    directory = pair_directory(PROCESSORS[name])
    text = (await directory.model("tiny")).text
    (request,) = await requests_of({"text_1": "qu", "text_2": "abcdef"}, directory=directory)
    assert request.pooling == PoolingParams(PoolingKind.LOGITS)
    whole = text.tokenizer.encode("qu", "abcdef").ids
    assert unpack_token_ids(request.prompt_ids) == whole
    body = {"text_1": "qu", "text_2": "abcdef", "use_activation": False}
    (request,) = await requests_of(
        {**body, "truncate_prompt_tokens": len(whole) - 2}, directory=directory
    )
    assert request.pooling == PoolingParams(PoolingKind.LOGITS, normalize=False)
    assert unpack_token_ids(request.prompt_ids) == text.tokenizer.encode("qu", "abcd").ids
    with pytest.raises(RequestError, match="too few"):
        await requests_of({**body, "truncate_prompt_tokens": 5}, directory=directory)
    with pytest.raises(RequestError, match="no 'instruction'"):
        await requests_of({**body, "instruction": "x"}, directory=directory)


@pytest.mark.parametrize("name", PROCESSORS)
async def test_an_encoder_is_told_where_the_second_text_begins(name: str) -> None:
    directory = pair_directory(PROCESSORS[name], ENCODER)
    text = (await directory.model("tiny")).text
    whole = text.tokenizer.encode("qu", "abcdef")
    (request,) = await requests_of({"text_1": "qu", "text_2": "abcdef"}, directory=directory)
    assert unpack_token_ids(request.prompt_ids) == whole.ids
    second_start = whole.type_ids.index(1)
    assert whole.type_ids == [0] * second_start + [1] * (len(whole.ids) - second_start)
    assert request.pooling == PoolingParams(PoolingKind.ENCODED, second_start=second_start)


async def test_what_is_cut_is_the_end_of_the_text() -> None:
    """Of three bytes a character some tokens end within one: never half of it is left."""
    body = {"query": "q", "documents": ["abcd\u20ac\u20ac"]}
    room = len(ids_of(asked("q", "abcd")))
    for num_more, kept in ((0, "abcd"), (1, "abcd"), (3, "abcd\u20ac"), (-2, "ab")):
        (prompt,) = await prompts_of({**body, "truncate_prompt_tokens": room + num_more})
        assert prompt == ids_of(asked("q", kept)), num_more
    (prompt,) = await prompts_of({**body, "truncate_prompt_tokens": -1}, max_context_len=room)
    assert prompt == ids_of(asked("q", "abcd"))
    with pytest.raises(RequestError, match="too few"):
        await requests_of({**body, "truncate_prompt_tokens": room - 4})


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"text_1": "q"}, "text_2", "'items'"),
        ({"text_1": "q", "queries": "q", "text_2": "a"}, "queries", "exclude"),
        ({"text_1": "q", "text_2": []}, "text_2", "empty"),
        ({"text_1": "q", "text_2": ["a", ""]}, "text_2[1]", "empty"),
        ({"text_1": ["q", "r"], "text_2": ["a"]}, "text_2", "2 texts and 'text_2' 1"),
        ({"text_1": ["q"] * 2, "text_2": ["a"] * 3}, "text_2", "as many"),
        ({"text_1": "q", "text_2": ["a"] * 2049}, "text_2", "2049"),
        ({"text_1": "q", "text_2": ["a"] * 257, "stream": True}, "text_2", "'stream'"),
        ({"text_1": "q", "text_2": "a" * 600}, "text_2", "'text_2' with its query has"),
        ({"text_1": "q", "text_2": "a", "use_activation": False}, "use_activation", "'yes'"),
        (
            {"text_1": "q", "text_2": "a", "truncate_prompt_tokens": 0},
            "truncate_prompt_tokens",
            "0",
        ),
        ({"text_1": "q", "text_2": "a", "instruction": ""}, "instruction", "0 characters"),
        ({"text_1": "q", "text_2": 7}, "text_2", "wrong type"),
        ({"query": "q"}, "documents", "required"),
        ({"documents": ["a"]}, "query", "required"),
        ({"query": "q", "documents": []}, "documents", "empty"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents[0].text", "required"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n", "-1"),
        ({"query": "q", "documents": ["a"], "top_n": 1, "stream": True}, "top_n", "'stream'"),
        ({"query": "q", "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc", "not"),
        (
            {"query": "q", "documents": ["a" * 65_537], "return_documents": True},
            "return_documents",
            "65537",
        ),
    ],
)
async def test_refused(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        await requests_of(body)
    error = caught.value
    assert (error.status_code, error.param) == (400, param), error.message
    assert words in error.message


async def test_a_model_that_scores_nothing_says_so() -> None:
    with pytest.raises(RequestError, match="scores nothing"):
        await requests_of({"text_1": "q", "text_2": "a"}, card=None)
    directory = make_directory("tiny", score=CLASSIFIER)
    requests = EmbeddingRequests(
        PooledInputs(directory, PromptEncoder(), AllRequests(directory).chat)
    )
    with pytest.raises(RequestError, match="makes no embeddings"):
        await requests.job({"model": "tiny", "input": "a"}, Caller())
