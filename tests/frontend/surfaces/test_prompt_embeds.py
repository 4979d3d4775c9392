"""`prompt_embeds` of vLLM and `input_embeds` of SGLang: from a body to the queue."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ModelDirectory
from shared.catalog.model_status import Limits, PoolHeartbeats
from shared.errors import RequestError
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.prompt_object import prompt_data
from shared.protocol.request import EMBEDS_LEVEL, EmbedsDtype
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, FakeCatalog
from tests.frontend.inference.test_accept import until_object_is_gone
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.tiny_model import make_bundle, make_card, register

WIDTH = 3
CARD: dict[str, Any] = {"embedding": EmbeddingCard(WIDTH)}


def rows_of(num_rows: int, width: int = WIDTH) -> bytes:
    return struct.pack(f"<{num_rows * width}f", *range(num_rows * width))


def tensor(num_rows: int, width: int = WIDTH) -> str:
    """A file of safetensors in base64."""
    data = rows_of(num_rows, width)
    entry = {"dtype": "F32", "shape": [num_rows, width], "data_offsets": [0, len(data)]}
    head = json.dumps({"prompt_embeds": entry}).encode()
    return base64.b64encode(struct.pack("<Q", len(head)) + head + data).decode()


async def job_of(*, surface: str = "completions", is_blind: bool = False, **body: Any) -> Job:
    class Catalog(FakeCatalog):
        async def heartbeats(self) -> PoolHeartbeats:
            limits = {card.pool: Limits(takes_no_embeds=is_blind)}
            return PoolHeartbeats({card.pool: ["ready"]}, {}, limits)

    bundle = make_bundle()
    card = make_card(bundle, **CARD)
    requests = AllRequests(ModelDirectory(Catalog(bundle, card)))  # type: ignore[arg-type]
    return await getattr(requests, surface).job({"model": "tiny", **body}, Caller())


async def test_each_tensor_is_a_prompt_and_they_come_first() -> None:
    job = await job_of(prompt_embeds=[tensor(4), tensor(2)], prompt="abc")
    assert [len(prompt.token_ids) for prompt in job.prompts] == [4, 2, 4]
    first, second, text = job.prompts
    assert text.embeds is None
    assert first.pixels == (rows_of(4),)
    assert first.embeds is not None
    assert second.embeds is not None
    assert (first.embeds.width, first.embeds.dtype) == (WIDTH, EmbedsDtype.FLOAT32)
    assert first.embeds.digest != second.embeds.digest
    assert job.needed_level >= EMBEDS_LEVEL


async def test_rows_of_numbers_as_sglang_has_them() -> None:
    rows = [[0.0, 1.0, 2.0], [3, 4, 5]]
    for given, is_list in ((rows, False), ([rows], True), (tensor(2), False), ([tensor(2)], True)):
        job = await job_of(surface="generate", input_embeds=given)
        assert job.options.is_list == is_list
        [prompt] = job.prompts
        assert prompt.pixels == (rows_of(2),)
        assert prompt.token_ids == [0, 0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt_embeds": tensor(2, 4)}, "'prompt_embeds' has 4 numbers in a row, the model"),
        ({"prompt_embeds": tensor(513)}, "'prompt_embeds' has 513 tokens"),
        ({"prompt_embeds": tensor(512)}, "maximum context length is 512"),
        ({"prompt_embeds": "@"}, "'prompt_embeds' is no base64"),
        ({"prompt_embeds": "AAAA"}, "'prompt_embeds' is neither a file of safetensors"),
        ({"prompt_embeds": []}, "'prompt_embeds' must be a tensor in base64"),
        ({"prompt_embeds": 7}, "'prompt_embeds' must be a tensor in base64"),
        ({"prompt_embeds": [tensor(1)] * 257}, "'prompt_embeds' holds 257 prompts"),
        ({"prompt_embeds": tensor(1), "echo": True}, "'echo' looks at the tokens of a prompt"),
        ({"prompt_embeds": tensor(1), "suffix": "x"}, "'suffix' "),
        ({"prompt_embeds": tensor(1), "repetition_penalty": 1.1}, "'repetition_penalty' looks"),
        ({"prompt_embeds": tensor(1), "dry_multiplier": 0.8}, "'dry_multiplier' looks at"),
        ({"prompt_embeds": tensor(1), "prompt_logprobs": 1}, "'prompt_logprobs' looks at"),
        ({"prompt_embeds": tensor(1), "return_token_ids": True}, "'return_token_ids' looks at"),
        ({"prompt_embeds": tensor(1), "truncate_prompt_tokens": 1}, "'truncate_prompt_tokens' "),
        ({"prompt_embeds": tensor(1), "is_blind": True}, "no worker of the model 'tiny' reads"),
        ({"surface": "generate", "input_embeds": [[1.0, "x", 2.0]]}, "must hold numbers"),
        ({"surface": "generate", "input_embeds": tensor(1), "text": "x"}, "not both"),
        ({"surface": "chat", "messages": [], "prompt_embeds": tensor(1)}, "'prompt_embeds' is not"),
    ],
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], told: str) -> None:
    async def accept() -> None:
        job = await job_of(**fields)
        own: dict[str, Any] = {"subject": "s", "frontend_id": "f", "cache_salt": ""}
        job.requests("g", Caller(), created=0, max_logprob_bytes=1, **own)

    with pytest.raises(RequestError) as raised:
        await accept()
    assert told in str(raised.value)
    assert raised.value.status_code == 400


@pytest.mark.integration
@pytest.mark.parametrize("transport", ["http", "nats"])
async def test_the_rows_travel_by_the_object_store(stack: Stack, transport: str) -> None:
    bundle = make_bundle()
    await register(stack.cluster, bundle, make_card(bundle, **CARD))
    running = await stack.start_frontend()
    body = {"model": "tiny", "prompt_embeds": tensor(5), "n": 2, "max_tokens": 4}
    stack.backend.hold.clear()
    stack.say("well")
    async with running.client() as client:
        asking = asyncio.create_task(
            client.post("/v1/completions", json=body)
            if transport == "http"
            else ask(stack, "completions", body)
        )
        await stack.until_queued(2)
        store = await stack.cluster.nc.jetstream().object_store(
            stack.cluster.subjects.objects_bucket
        )
        stored = {
            entry.name: (await store.get(str(entry.name))).data for entry in await store.list()
        }
        stack.backend.hold.set()
        await asking
    runs = [run.request for run in stack.backend.runs.values()]
    assert len(runs) == 2
    for request in runs:
        assert request.level >= EMBEDS_LEVEL
        data = prompt_data(request, stored[request.prompt_object] or b"")
        assert data.pixels == (rows_of(5),)
        assert data.prompt_ids == bytes(20)
        assert request.reply.num_prompt_tokens == 5
        await until_object_is_gone(stack, request.prompt_object)
