"""Conversations of the Responses API: gone on with at any frontend, exact when one dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from frontend.stored.erasing.tenant_eraser import TenantEraser
from frontend.surfaces.responses import conversation_store
from frontend.surfaces.responses.response_answer import (
    ConversationDeleted,
    ConversationObject,
    InputItems,
)
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.surfaces.test_responses import finished, sdk
from tests.frontend.tiny_model import make_tokenizer
from tests.frontend.told_answers import check_answer, check_items

pytestmark = pytest.mark.integration

URL = "/v1/conversations"
HI: Any = {"role": "user", "content": "Hi"}
NO_CONVERSATION = {"model": "tiny", "input": "Hi", "background": True}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "7"}


@dataclass
class Two:
    """Two frontends: OpenAI's client on each, and a plain one on the second."""

    first: RunningFrontend
    here: AsyncOpenAI
    there: AsyncOpenAI
    http: httpx.AsyncClient


@pytest.fixture
async def two(stack: Stack) -> AsyncIterator[Two]:
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with sdk(first) as here, sdk(second) as there, second.client() as http:
        yield Two(first, here, there, http)


async def texts_of(client: AsyncOpenAI, conversation_id: str) -> list[tuple[str, str]]:
    listed = client.conversations.items.list(conversation_id, order="asc")
    items: list[Any] = [item async for item in listed]
    return [(item.role, item.content[0].text) for item in items]


def last_prompt(stack: Stack) -> str:
    *_, run = stack.backend.runs.values()
    ids = unpack_token_ids(run.request.prompt_ids)
    return str(make_tokenizer().decode(ids, skip_special_tokens=False))


async def test_what_is_said_in_it_is_there_at_every_frontend(two: Two, stack: Stack) -> None:
    made = await two.here.conversations.create(
        items=[{"role": "developer", "content": "Be kind."}], metadata={"a": "b"}
    )
    assert made.id.startswith("conv_")
    first = await two.there.responses.create(model="tiny", input="Hi", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    said = [("developer", "Be kind."), ("user", "Hi"), ("assistant", "Hello, world!")]
    assert await texts_of(two.here, made.id) == said
    again = await two.here.responses.create(
        model="tiny", input="More", conversation={"id": made.id}
    )
    assert await texts_of(two.there, made.id) == [
        *said,
        ("user", "More"),
        ("assistant", "Hello, world!"),
    ]
    prompt = last_prompt(stack)
    places = [prompt.index(word) for word in ("Be kind.", "Hi", "Hello, world!", "More")]
    assert places == sorted(places)
    got = await two.here.conversations.retrieve(made.id)
    assert (got.metadata, got.created_at) == ({"a": "b"}, made.created_at)
    changed = await two.there.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    kept = await two.there.responses.retrieve(again.id)
    assert kept.conversation is not None
    assert kept.conversation.id == made.id


async def test_items_come_and_go(two: Two) -> None:
    made = await two.here.conversations.create()
    path = f"{URL}/{made.id}/items"
    added = await two.http.post(path, json={"items": [HI, CALL, OUTPUT]})
    page = added.json()
    check_answer(InputItems, page)
    check_items(page["data"])
    ids = [item["id"] for item in page["data"]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[2], False)
    one = (await two.http.get(f"{path}/{ids[0]}")).json()
    assert one == page["data"][0]
    left = await two.http.delete(f"{path}/{ids[1]}")
    check_answer(ConversationObject, left.json())
    listed = (await two.http.get(f"{path}?order=asc&limit=1&after={ids[0]}")).json()
    assert [item["id"] for item in listed["data"]] == [ids[2]]
    assert (await two.http.get(f"{path}/{ids[1]}")).status_code == 404
    assert (await two.http.delete(f"{path}/{ids[1]}")).status_code == 404
    going_on = await two.here.responses.create(model="tiny", input="x", conversation=made.id)
    assert going_on.status == "completed"
    gone = await two.http.delete(f"{URL}/{made.id}")
    check_answer(ConversationDeleted, gone.json())
    for answer in (
        await two.http.get(f"{URL}/{made.id}"),
        await two.http.post(path, json={"items": [HI]}),
        await two.http.post("/v1/responses", json=in_conversation(made.id)),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "conversation_not_found"


def in_conversation(conversation_id: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "Hi", "conversation": conversation_id, **fields}


async def test_only_one_thing_goes_on_in_it(two: Two, stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("Hel", "lo", gate=gate)
    made = await two.here.conversations.create(items=[HI])
    running = await two.here.responses.create(**in_conversation(made.id), background=True)
    (item,) = (await two.http.get(f"{URL}/{made.id}/items")).json()["data"]
    for method, path, body in (
        ("POST", "/v1/responses", in_conversation(made.id)),
        ("POST", f"{URL}/{made.id}/items", {"items": [HI]}),
        ("DELETE", f"{URL}/{made.id}/items/{item['id']}", None),
    ):
        locked = await two.http.request(method, path, json=body)
        assert (locked.status_code, locked.json()["error"]["code"]) == (409, "conversation_locked")
    assert (await two.there.conversations.update(made.id, metadata={"a": "b"})).metadata
    gate.set()
    await finished(two.there, running.id)
    assert await texts_of(two.here, made.id) == [
        ("user", "Hi"),
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]
    at_once = await asyncio.gather(
        *(two.http.post("/v1/responses", json=in_conversation(made.id)) for _ in range(4))
    )
    outcomes = sorted(answer.status_code for answer in at_once)
    num_said = outcomes.count(200)
    assert num_said >= 1
    assert set(outcomes) <= {200, 409}
    assert len(await texts_of(two.here, made.id)) == 3 + 2 * num_said


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCEL])
async def test_what_failed_is_not_in_it(two: Two, stack: Stack, reason: FinishReason) -> None:
    made = await two.here.conversations.create(items=[HI])
    stack.say("Hel", finish=Finish(reason))
    failed = await two.here.responses.create(**in_conversation(made.id), background=True)
    await finished(two.there, failed.id)
    assert await texts_of(two.there, made.id) == [("user", "Hi")]
    stack.say("Yes")
    await two.there.responses.create(**in_conversation(made.id))
    assert (await texts_of(two.here, made.id))[-1] == ("assistant", "Yes")


async def test_a_frontend_that_dies_takes_nothing_of_it_along(two: Two, stack: Stack) -> None:
    gate = asyncio.Event()
    stack.say("Hel", "lo", gate=gate)
    made = await two.here.conversations.create()
    running = await two.here.responses.create(**in_conversation(made.id), background=True)
    await two.first.die()
    gate.set()
    await finished(two.there, running.id)
    assert await texts_of(two.there, made.id) == [("user", "Hi"), ("assistant", "Hello")]


async def test_a_deleted_response_leaves_what_it_said(two: Two) -> None:
    made = await two.here.conversations.create()
    said = await two.here.responses.create(**in_conversation(made.id))
    await two.there.responses.delete(said.id)
    assert await texts_of(two.here, made.id) == [("user", "Hi"), ("assistant", "Hello, world!")]


async def test_one_deleted_while_it_runs_leaves_nothing(two: Two, stack: Stack) -> None:
    stack.say("Hel", never_finish=True)
    made = await two.here.conversations.create(items=[HI])
    running = await two.here.responses.create(**in_conversation(made.id), background=True)
    await two.there.responses.delete(running.id)
    stack.say("Yes")
    await two.there.responses.create(**in_conversation(made.id))
    assert [role for role, _ in await texts_of(two.here, made.id)] == ["user", "user", "assistant"]


class SlowQueueing:
    """A frontend that names a response in its conversation, and then stands still."""

    def __init__(self, running: RunningFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
        submitter = running.frontend.side.inference.side._acceptor._submitter
        self._submit = submitter.submit
        self.stands_still, self.wakes_up = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(submitter, "submit", self.submit)

    async def submit(self, *args: Any, **options: Any) -> None:
        self.stands_still.set()
        await self.wakes_up.wait()
        await self._submit(*args, **options)


@pytest.mark.parametrize("wakes_up", [False, True])
async def test_what_was_never_queued_locks_it_for_a_while(
    two: Two, stack: Stack, monkeypatch: pytest.MonkeyPatch, wakes_up: bool
) -> None:
    """Its frontend dies before it queues the response; or it wakes up, too late."""
    made = await two.here.conversations.create(items=[HI])
    slow = SlowQueueing(two.first, monkeypatch)
    saying = asyncio.create_task(
        two.here.responses.create(**in_conversation(made.id), background=True)
    )
    await slow.stands_still.wait()
    locked = await two.http.post(f"{URL}/{made.id}/items", json={"items": [HI]})
    assert locked.status_code == 409
    if not wakes_up:
        await two.first.die()
        await asyncio.gather(saying, return_exceptions=True)
    monkeypatch.setattr(conversation_store, "_QUEUEING_S", 0.0)
    assert await texts_of(two.there, made.id) == [("user", "Hi")]
    await two.there.responses.create(**in_conversation(made.id))
    if wakes_up:
        slow.wakes_up.set()
        late = await finished(two.there, (await saying).id)
        assert late.status == "cancelled"
    assert len(await texts_of(two.there, made.id)) == 3
    assert len(stack.backend.runs) == 1 + wakes_up


async def test_what_waits_long_in_the_queue_keeps_it_locked(
    two: Two, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await two.here.conversations.create(items=[HI])
    stack.backend.hold.clear()
    waiting = await two.here.responses.create(**in_conversation(made.id), background=True)
    monkeypatch.setattr(conversation_store, "_QUEUEING_S", 0.0)
    locked = await two.http.post("/v1/responses", json=in_conversation(made.id))
    assert locked.status_code == 409
    stack.backend.hold.set()
    await finished(two.there, waiting.id)
    assert len(await texts_of(two.there, made.id)) == 3


async def test_an_idempotency_key_says_it_once(two: Two) -> None:
    made = await two.here.conversations.create()
    headers = {"Idempotency-Key": "k"}
    for client in (two.here, two.there, two.here):
        await client.responses.create(**in_conversation(made.id), extra_headers=headers)
    assert len(await texts_of(two.here, made.id)) == 2


async def test_a_refused_response_leaves_it_open(two: Two, stack: Stack) -> None:
    made = await two.here.conversations.create()
    stack.backend.hold.clear()
    for _ in range(8):
        await two.http.post("/v1/responses", json=NO_CONVERSATION)
    refused = await two.http.post("/v1/responses", json=in_conversation(made.id))
    assert refused.status_code == 429
    stack.backend.hold.set()
    added = await two.http.post(f"{URL}/{made.id}/items", json={"items": [HI]})
    assert added.status_code == 200


async def test_it_belongs_to_its_key_and_goes_with_its_tenant(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("mine", "yours"))
    async with sdk(running, "mine") as mine, sdk(running, "yours") as yours:
        made = await mine.conversations.create(items=[HI])
        for attempt in (
            yours.conversations.retrieve(made.id),
            yours.conversations.delete(made.id),
            yours.conversations.update(made.id, metadata={}),
            yours.conversations.items.list(made.id),
            yours.conversations.items.create(made.id, items=[HI]),
            yours.responses.create(**in_conversation(made.id)),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        with pytest.raises(openai.NotFoundError):
            await mine.responses.retrieve(made.id.replace("conv_", "resp_"))
        eraser = TenantEraser(stack.cluster, "test")
        tenant = running.frontend.process.keys.tenant_of("Bearer mine")
        assert (await eraser.erase(tenant.id)).num_requests == 1
        with pytest.raises(openai.NotFoundError):
            await mine.conversations.retrieve(made.id)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("", {"items": [HI] * 21}, "items"),
    ("", {"items": [{"role": "x", "content": "y"}]}, "items[0].role"),
    ("", {"items": [OUTPUT]}, "items[0].call_id"),
    ("", {"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ("", {"metadata": {"a": 7}}, "metadata"),
    ("/{id}", {}, "metadata"),
    ("/{id}/items", {}, "items"),
    ("/{id}/items", {"items": []}, "items"),
]


async def test_what_is_wrong_is_refused_by_name(two: Two) -> None:
    made = await two.here.conversations.create()
    for path, body, param in WRONG:
        answer = await two.http.post(f"{URL}{path.format(id=made.id)}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    for fields, name in (
        ({"previous_response_id": "resp_x"}, "conversation"),
        ({"store": False}, "store"),
    ):
        refused = await two.http.post("/v1/responses", json=in_conversation(made.id, **fields))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_it_is_as_large_as_a_response_may_be(stack: Stack) -> None:
    running = await stack.start_frontend(max_response_bytes=2000)
    async with running.client() as http:
        made = (await http.post(URL, json={"items": [HI]})).json()
        large = {"items": [{"role": "user", "content": "x" * 2000}]}
        refused = await http.post(f"{URL}/{made['id']}/items", json=large)
        assert refused.status_code == 413
        assert "delete items" in refused.json()["error"]["message"]
    info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
    assert info["state"]["messages"] == 1


async def test_earlier_states_of_it_are_not_kept(two: Two, stack: Stack) -> None:
    made = await two.here.conversations.create()
    for _ in range(3):
        await two.http.post(f"{URL}/{made.id}/items", json={"items": [HI]})
    info = await stack.cluster.js.api("STREAM.INFO.jf_RESPONSES")
    assert info["state"]["messages"] == 1


async def test_over_nats(stack: Stack) -> None:
    await stack.start_frontend()

    async def asked(endpoint: str, **body: Any) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((await ask(stack, endpoint, body)).data)
        return told

    made = await asked("conversations", items=[HI], metadata={"a": "b"})
    name = {"id": made["id"]}
    await asked("responses", **in_conversation(made["id"]))
    items = await asked("conversations.items", **name, order="asc")
    assert [item["role"] for item in items["data"]] == ["user", "user", "assistant"]
    added = await asked("conversations.items.add", **name, items=[HI])
    item = {"item_id": added["first_id"]}
    assert await asked("conversations.items.get", **name, **item) == added["data"][0]
    assert await asked("conversations.items.delete", **name, **item) == made
    assert (await asked("conversations.change", **name, metadata={}))["metadata"] == {}
    assert (await asked("conversations.get", **name))["metadata"] == {}
    assert (await asked("conversations.delete", **name))["deleted"]
    assert "error" in await asked("conversations.get", **name)
