"""LoRA adapters are models of their own to clients, and requests say which revision they mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import AdapterCard
from shared.protocol.sealed_replies import unseal
from tests.frontend.conftest import Stack
from tests.frontend.directory import make_directory
from tests.frontend.fake_backend import Script
from tests.frontend.sse import sse_events, text_of

ONE = AdapterCard("one", "rev-one", 8, 7, "/adapters/one")
CHAT: dict[str, Any] = {"model": "one", "messages": [{"role": "user", "content": "Hi"}]}

SetAdapters = Callable[..., Awaitable[None]]


@pytest.fixture
async def set_adapters(stack: Stack) -> SetAdapters:
    """Those that the model's card lists from now on."""

    async def put(*adapters: AdapterCard) -> None:
        card = msgspec.structs.replace(stack.card, adapters=adapters)
        bucket = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
        await bucket.put(card.pool, encode(card))

    await put(ONE)
    return put


@pytest.mark.integration
async def test_an_adapter_is_listed_and_asked_for_as_a_model(
    stack: Stack, set_adapters: SetAdapters
) -> None:
    stack.say("Hello")
    frontend = await stack.start_frontend()
    async with frontend.client() as client:
        answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
        base, adapter = (await client.get("/v1/models")).json()["data"]
        assert (await client.get("/v1/models/one")).json() == adapter
        await client.post("/v1/chat/completions", json=CHAT | {"model": "tiny"})
        # One model is served, whatever its adapters: who names none means it.
        await client.post("/generate", json={"text": "Hi"})
    assert answer["model"] == "one"
    assert (base["id"], base["root"], base["parent"]) == ("tiny", "tiny", None)
    assert adapter == base | {
        "id": "one",
        "root": "/adapters/one",
        "parent": "tiny",
        "created": 7,
    }
    requests = [run.request for run in stack.backend.runs.values()]
    assert [each.adapter for each in requests] == ["rev-one", "", ""]
    assert {each.pool for each in requests} == {stack.card.pool}
    assert [unseal(each.reply).served_model for each in requests] == ["tiny"] * 3


@pytest.mark.integration
async def test_a_stream_resumes_when_its_adapter_is_gone(
    stack: Stack, set_adapters: SetAdapters
) -> None:
    stack.say("Hello", " there", delay_s=0.01)
    first, second = await stack.start_frontend(), await stack.start_frontend()
    body = CHAT | {"stream": True, "logprobs": True}
    async with (
        first.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        rid = response.headers["x-request-id"]
        events = [event async for event in sse_events(response)]
    await set_adapters()
    async with second.client() as client:
        while (await client.get("/v1/models/one")).status_code == 200:
            pass
        headers = {"Last-Event-ID": events[1].event_id}
        async with client.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
            rest = [event async for event in sse_events(response)]
        refused = await client.post("/v1/chat/completions", json=CHAT)
    assert text_of(events[:2]) + text_of(rest) == "Hello there"
    assert rest[0].json["model"] == "one"
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"


@pytest.mark.integration
async def test_a_request_whose_adapter_was_unloaded(
    stack: Stack, set_adapters: SetAdapters
) -> None:
    finish = Finish(FinishReason.ADAPTER_UNLOADED, message="The LoRA adapter 'one' was unloaded.")
    stack.answer(lambda request: Script([], finish))
    frontend = await stack.start_frontend()
    async with frontend.client() as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "adapter_unloaded"
    assert "was unloaded" in answer.json()["error"]["message"]


async def test_a_model_goes_before_an_adapter_of_its_name() -> None:
    directory = make_directory("tiny", "one", adapters=(ONE,))
    assert (await directory.model("one")).adapter is None
    assert (await directory.model("tiny")).name == "tiny"
