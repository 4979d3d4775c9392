"""Classes, and vectors as they are: bodies to one request an input, and answers in vLLM's words."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import ClassifierCard, EmbeddingCard
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask

pytestmark = pytest.mark.integration

LABELS = ("bad", "good", "so so")
PROBS = (0.125, 0.5, 0.375)
CLASSES = ClassifierCard(LABELS)


def classify(_: GenerateRequest) -> Script:
    return Script([""], Finish(FinishReason.STOP, embedding=struct.pack("<3f", *PROBS)))


async def start(stack: Stack, **card: Any) -> RunningFrontend:
    fields = {"classifier": CLASSES, "can_generate": False, "embedding": None, **card}
    changed = msgspec.structs.replace(stack.card, **fields)
    bucket = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await bucket.put(changed.pool, encode(changed))
    stack.answer(classify)
    return await stack.start_frontend()


def asked(stack: Stack) -> PoolingParams | None:
    return list(stack.backend.runs.values())[-1].request.pooling


async def test_each_input_gets_its_likeliest_label(stack: Stack) -> None:
    running = await start(stack)
    async with running.client() as client:
        body = {"model": "tiny", "input": ["fine", "so"]}
        answer = await client.post("/classify", json=body)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["id"].startswith("classify-")
        assert [each["index"] for each in said["data"]] == [0, 1]
        assert said["data"][1] == {"index": 1, "label": "good", "probs": [*PROBS], "num_classes": 3}
        assert said["usage"]["prompt_tokens"] == said["usage"]["total_tokens"] > 0
        assert asked(stack) == PoolingParams(PoolingKind.LOGITS)
        again = await client.get(f"/v1/streams/{answer.headers['x-request-id']}?stream=false")
        assert again.json()["data"] == said["data"]
        streamed = await client.post("/v1/classify", json={**body, "stream": True})
        assert streamed.text.count('"label":"good"') == 2
        bare = {**body, "input": [[1, 2]], "use_activation": False}
        assert (await client.post("/classify", json=bare)).status_code == 200
        assert asked(stack) == PoolingParams(PoolingKind.LOGITS, normalize=False)
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await client.post("/classify", json=chat)).json()["data"][0]["label"] == "good"
        [model] = (await client.get("/v1/models")).json()["data"]
        assert model["tasks"] == ["classify"]
        probe = await client.get("/health_generate")
        assert probe.json()["data"][0]["label"] == "good"
        invoked = await client.post("/invocations", json={"input": "fine"})
        assert invoked.json()["data"][0]["num_classes"] == 3
        said_over_nats = await ask(stack, "classify", body)
        assert json.loads(said_over_nats.data)["data"] == said["data"]


async def test_vectors_come_as_they_are(stack: Stack) -> None:
    running = await start(stack, embedding=EmbeddingCard(3))
    async with running.client() as client:
        body = {"model": "tiny", "input": "fine"}
        answer = await client.post("/pooling", json={**body, "encoding_format": "base64"})
        [vector] = answer.json()["data"]
        assert (vector["object"], vector["index"]) == ("pooling", 0)
        assert struct.unpack("<3f", base64.b64decode(vector["data"])) == PROBS
        embed = {**body, "task": "embed", "normalize": False}
        assert (await client.post("/v1/pooling", json=embed)).json()["data"][0]["data"] == [*PROBS]
        assert asked(stack) == PoolingParams(PoolingKind.LAST, normalize=False)
        for fields, param in (
            ({"normalize": False}, "normalize"),
            ({"task": "embed", "use_activation": True}, "use_activation"),
            ({"task": "token"}, "task"),
            ({"input": []}, "input"),
        ):
            refused = await client.post("/pooling", json={**body, **fields})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_vector_of_each_token(stack: Stack) -> None:
    running = await start(stack, embedding=EmbeddingCard(3), max_context_len=200_000)
    numbers = [float(each) for each in range(15)]  # of five tokens
    vectors = struct.pack("<15f", *numbers)
    stack.answer(lambda _: Script([""], Finish(FinishReason.STOP, embedding=vectors)))
    async with running.client() as client:
        body = {"model": "tiny", "input": "fine", "task": "token_embed"}
        answer = (await client.post("/pooling", json=body)).json()
        assert answer["data"][0]["data"] == [numbers[at : at + 3] for at in range(0, 15, 3)]
        assert asked(stack) == PoolingParams(PoolingKind.LAST, each_token=True)
        encoded = await client.post("/pooling", json={**body, "encoding_format": "base64"})
        assert base64.b64decode(encoded.json()["data"][0]["data"]) == vectors
        streamed = await client.post("/pooling", json={**body, "stream": True})
        assert '"data":[[0.0,1.0,2.0],' in streamed.text
        await client.post("/pooling", json={**body, "task": "token_classify"})
        assert asked(stack) == PoolingParams(PoolingKind.LOGITS, each_token=True)
        for fields in ({"input": "x" * 100_000}, {"pooling": "mean"}):
            refused = await client.post("/pooling", json={**body, **fields})
            param = "pooling" if "pooling" in fields else "task"
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    said = json.loads((await ask(stack, "pooling", body)).data)
    assert said["data"] == answer["data"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"input": "a"}),
        ("/pooling", {"input": "a", "task": "classify"}),
        ("/pooling", {"input": "a"}),
    ],
)
async def test_a_model_without_labels_classifies_nothing(
    stack: Stack, path: str, body: dict[str, Any]
) -> None:
    running = await start(stack, classifier=None)
    async with running.client() as client:
        answer = await client.post(path, json={"model": "tiny", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_independent_labels_of_an_encoder(stack: Stack) -> None:
    card = ClassifierCard(LABELS, are_independent=True, is_encoder=True, is_probability=False)
    running = await start(stack, classifier=card)
    async with running.client() as client:
        await client.post("/classify", json={"model": "tiny", "input": "a"})
        expected = PoolingParams(PoolingKind.ENCODED, normalize=False, are_independent=True)
        assert asked(stack) == expected
