"""Refusals by limits: of keys, of classes, at one frontend and at two."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.tenants.tenant import Tenant
from jetflock.client import Client
from jetflock.errors import QueueFull
from shared.protocol.codec import encode
from shared.protocol.notices import TenantCost, TenantGossip, TenantUse
from tests.eventually import Looks, eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.frontend.sse import sse_events
from tests.frontend.tenants.test_tenant_lanes import make_room, num_queued
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

ALICE = {"Authorization": "Bearer sk-a"}
BOB = {"Authorization": "Bearer sk-b"}
NATS_CHAT = "jetflock.chat.completions"


def key_file(folder: Path, **limits: Any) -> Path:
    """Alice has limits, Bob has none."""
    lines = [f"  {name}: {value}\n" for name, value in limits.items()]
    path = folder / "keys.yaml"
    text = "keys:\n- name: bob\n  key: sk-b\n- name: alice\n  key: sk-a\n" + "".join(lines)
    # As a mounted secret changes: at once.
    new = folder / "new"
    new.write_text(text)
    os.replace(new, path)
    return path


def refused_by(running: RunningFrontend, code: str, job_class: str = "interactive") -> float:
    return running.metrics.acceptance.refused.labels(code, job_class).value


def assert_refused(answer: httpx.Response, code: str, *words: str) -> None:
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert error["code"] == code
    assert all(word in error["message"] for word in words), error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 120


async def test_a_key_has_so_many_requests_at_a_time(stack: Stack, tmp_path: Path) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, max_concurrent=2))
    async with running.client() as client:
        waiting = [
            asyncio.create_task(client.post(CHAT, json=BODY, headers=ALICE)) for _ in range(2)
        ]
        await stack.until_queued(2)
        refused = await client.post(CHAT, json=BODY, headers=ALICE)
        assert_refused(refused, "rate_limit_exceeded", "2 requests at a time", "2 wait or run")
        assert refused.json()["error"]["type"] == "requests"
        assert refused_by(running, "rate_limit_exceeded") == 1
        waiting.append(asyncio.create_task(client.post(CHAT, json=BODY, headers=BOB)))
        await stack.until_queued(3)
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}
        too_many = await client.post(CHAT, json={**BODY, "n": 3}, headers=ALICE)
        assert too_many.status_code == 400, "it would never be let in"
        assert (await client.post(CHAT, json={**BODY, "n": 2}, headers=ALICE)).status_code == 200


async def test_a_key_has_so_many_requests_a_minute(stack: Stack, tmp_path: Path) -> None:
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, requests_per_minute=2))
    async with running.client() as client:
        left = []
        for _ in range(2):
            answer = await client.post(CHAT, json=BODY, headers=ALICE)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            left.append(answer.headers["x-ratelimit-remaining-requests"])
        assert left == ["1", "0"]
        refused = await client.post(CHAT, json=BODY, headers=ALICE)
        assert_refused(refused, "rate_limit_exceeded", "2 requests per minute")
        assert 20 <= int(refused.headers["retry-after"]) <= 30, "two a minute"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-ratelimit-limit-tokens" not in refused.headers
        bob = await client.post(CHAT, json={**BODY, "stream": True}, headers=BOB)
        assert bob.status_code == 200
        assert not [name for name in bob.headers if name.startswith("x-ratelimit")]


async def test_limits_are_told_over_nats_as_over_http(stack: Stack, tmp_path: Path) -> None:
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, requests_per_minute=2))
    body = json.dumps(BODY).encode()
    for left in ("1", "0"):
        reply = await stack.caller.request(NATS_CHAT, body, 10, headers=ALICE)
        assert reply.headers is not None
        assert reply.headers["x-ratelimit-remaining-requests"] == left
    refused = await stack.caller.request(NATS_CHAT, body, 10, headers=ALICE)
    async with running.client() as client:
        over_http = await client.post(CHAT, json=BODY, headers=ALICE)
    assert refused.headers is not None
    assert refused.headers["Nats-Service-Error-Code"] == str(over_http.status_code) == "429"
    assert json.loads(refused.data)["error"]["code"] == over_http.json()["error"]["code"]
    assert json.loads(refused.data)["error"].keys() == over_http.json()["error"].keys()
    told = {name for name in over_http.headers if name.startswith("x-ratelimit-")}
    assert told == {name for name in refused.headers if name.startswith("x-ratelimit-")} != set()
    waits = [int(refused.headers["Retry-After"]), int(over_http.headers["retry-after"])]
    assert 0 <= waits[0] - waits[1] <= 5, "the second was asked later"
    key = ALICE["Authorization"].removeprefix("Bearer ")
    async with Client(stack.server.url, api_key=key) as client:
        with pytest.raises(QueueFull) as caught:
            await client.generate_async("Hi").aaccepted()
    assert 20 <= (caught.value.retry_after_s or 0) <= 30


async def test_tokens_count_when_they_are_made(stack: Stack, tmp_path: Path) -> None:
    stack.say(*["x"] * 40)
    path = key_file(tmp_path, tokens_per_minute=100)
    running = await stack.start_frontend(api_keys_file=path)
    async with running.client() as client:
        body = {**BODY, "stream": True}
        first = await client.post(CHAT, json=body, headers=ALICE)
        before = int(first.headers["x-ratelimit-remaining-tokens"])
        assert 60 <= before < 100, "its prompt is counted"
        second = await client.post(CHAT, json=BODY, headers=ALICE)
        assert second.status_code == 200
        assert int(second.headers["x-ratelimit-remaining-tokens"]) < before - 40 + 5
        refused = await client.post(CHAT, json=BODY, headers=ALICE)
    assert_refused(refused, "rate_limit_exceeded", "100 tokens per minute")
    assert refused.json()["error"]["type"] == "tokens"


async def test_tokens_after_a_hang_up_and_on_another_frontend_are_paid(
    stack: Stack, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    stack.say(*["x"] * 40, gate=gate)
    path = key_file(tmp_path, tokens_per_minute=1000)
    one, other = [await stack.start_frontend(api_keys_file=path) for _ in range(2)]
    async with one.client(headers=ALICE) as here, other.client(headers=ALICE) as there:
        body = {**BODY, "stream": True}
        grace = {"X-Resume-Grace": "60"}
        async with here.stream("POST", CHAT, json=body, headers=grace) as response:
            rid = response.headers["x-request-id"]
            before = int(response.headers["x-ratelimit-remaining-tokens"])
            await anext(sse_events(response))
        gate.set()  # 39 of its 40 tokens are made when nobody reads them, or another does
        whole = await there.get(f"/v1/streams/{rid}", params={"stream": "false"})
        assert whole.json()["usage"]["completion_tokens"] == 40
        for client in (here, there):
            answer = await client.post(CHAT, json=BODY)
            assert answer.status_code == 200
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
    cost = 1000 - before  # of a prompt
    assert left <= before - 40 - 40 - 2 * cost + 60, "a second gives 17 of them back"


async def test_tokens_made_elsewhere_are_paid_at_a_frontend_that_the_tenant_is_new_to(
    stack: Stack, tmp_path: Path
) -> None:
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, tokens_per_minute=100))
    news = await stack.cluster.nc.subscribe(stack.cluster.subjects.tenants)
    await news.next_msg(timeout=10)  # who tells, hears
    charged = running.frontend.process.ledger.rates.uses
    cost = TenantCost(Tenant("alice").owner, 150)
    await stack.cluster.nc.publish(stack.cluster.subjects.costs, encode(cost))
    await eventually(lambda: "alice" in charged(time.monotonic()))
    async with running.client() as client:
        refused = await client.post(CHAT, json=BODY, headers=ALICE)
    assert_refused(refused, "rate_limit_exceeded", "100 tokens per minute, of which 0 are left")


PROMPT = {"prompt": "Hi"}
HI = {"role": "user", "content": "Hi"}
CONVERSATION = "/v1/conversations/{conversation}"
CALLS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "tokenize": ("POST", "/tokenize", PROMPT),
    "detokenize": ("POST", "/detokenize", {"tokens": [40]}),
    "template": ("POST", "/apply-template", {"messages": [HI]}),
    "count": ("POST", "/v1/messages/count_tokens", BODY),
    "count of a response": (
        "POST",
        "/v1/responses/input_tokens",
        {"model": "tiny", "input": "Hi"},
    ),
    "stream": ("GET", "/v1/streams/{rid}?stream=false", None),
    "responses": ("GET", "/v1/responses/resp_{response}?stream=true", None),
    "batch of chats": ("POST", f"{CHAT}/batch", {"model": "tiny", "messages": [[HI]]}),
    "Ollama's chat": ("POST", "/api/chat", {"model": "tiny", "messages": [HI], "stream": False}),
    "Ollama's loading": ("POST", "/api/generate", {"model": "tiny", "stream": False}),
    "conversation": ("POST", "/v1/conversations", {}),
    "metadata": ("POST", CONVERSATION, {"metadata": {}}),
    "items": ("POST", f"{CONVERSATION}/items", {"items": [HI]}),
    "item": ("DELETE", f"{CONVERSATION}/items/{{item}}", None),
}


@pytest.mark.parametrize("call", list(CALLS))
async def test_every_call_that_makes_work_is_one_of_the_minute(
    stack: Stack, tmp_path: Path, call: str
) -> None:
    method, path, body = CALLS[call]
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, requests_per_minute=4))
    async with running.client(headers=ALICE) as client:
        chat = await client.post(CHAT, json=BODY)
        kept = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
        made = (await client.post("/v1/conversations", json={"items": [HI]})).json()["id"]
        [item] = (await client.get(f"/v1/conversations/{made}/items")).json()["data"]
        names = {
            "rid": chat.headers["x-request-id"],
            "response": kept.json()["id"].removeprefix("resp_"),
            "conversation": made,
            "item": item["id"],
        }
        url = path.format(**names)
        first, second = [await client.request(method, url, json=body) for _ in range(2)]
    assert first.status_code == 200, first.text
    assert second.status_code == 429
    assert "4 requests per minute" in second.text


async def test_joining_a_request_by_its_key_is_one_of_the_minute(
    stack: Stack, tmp_path: Path
) -> None:
    running = await stack.start_frontend(api_keys_file=key_file(tmp_path, requests_per_minute=2))
    async with running.client(headers={**ALICE, "Idempotency-Key": "k"}) as client:
        answers = [await client.post(CHAT, json=BODY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert len(stack.backend.runs) == 1


async def test_a_refused_request_costs_nothing(stack: Stack, tmp_path: Path) -> None:
    stack.backend.hold.clear()
    path = key_file(tmp_path, requests_per_minute=60)
    running = await stack.start_frontend(api_keys_file=path)
    async with running.client() as client:
        waiting = [asyncio.create_task(client.post(CHAT, json=BODY, headers=BOB)) for _ in range(8)]
        await stack.until_queued(8)
        refused = await client.post(CHAT, json=BODY, headers=ALICE)
        assert_refused(refused, "queue_full")
        stack.backend.hold.set()
        await asyncio.gather(*waiting)
        answer = await client.post(CHAT, json=BODY, headers=ALICE)
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"


async def test_a_limit_holds_over_two_frontends(stack: Stack, tmp_path: Path) -> None:
    stack.backend.hold.clear()
    path = key_file(tmp_path, max_concurrent=3, requests_per_minute=60)
    running = [await stack.start_frontend(api_keys_file=path) for _ in range(2)]
    exchanges = [one.frontend.side.streams.exchange for one in running]
    await eventually(lambda: all(exchange.num_others == 1 for exchange in exchanges))
    async with running[0].client() as here, running[1].client() as there:
        waiting = [asyncio.create_task(here.post(CHAT, json=BODY, headers=ALICE)) for _ in range(3)]
        await stack.until_queued(3)
        ledger = running[1].frontend.process.ledger
        await eventually(lambda: ledger.num_of_all_classes("alice") == 3)
        refused = await there.post(CHAT, json=BODY, headers=ALICE)
        assert_refused(refused, "rate_limit_exceeded", "3 requests at a time")
        stack.backend.hold.set()
        await asyncio.gather(*waiting)
        await eventually(lambda: ledger.num_of_all_classes("alice") == 0)
        answer = await there.post(CHAT, json=BODY, headers=ALICE)
        assert answer.status_code == 200
        left = int(answer.headers["x-ratelimit-remaining-requests"])
        assert 56 <= left <= 58, "of both together, one a second comes back"


async def test_lanes_follow_what_a_tenant_has_at_all_frontends(
    stack: Stack, tmp_path: Path
) -> None:
    await make_room(stack, 100)
    stack.backend.hold.clear()
    running = [await stack.start_frontend(api_keys_file=key_file(tmp_path)) for _ in range(2)]
    exchanges = [one.frontend.side.streams.exchange for one in running]
    await eventually(lambda: all(exchange.num_others == 1 for exchange in exchanges))
    async with running[0].client() as here, running[1].client() as there:
        waiting = [asyncio.create_task(here.post(CHAT, json={**BODY, "n": 8}, headers=ALICE))]
        await stack.until_queued(8)
        ledger = running[1].frontend.process.ledger
        await eventually(lambda: ledger.num_outstanding("alice", "interactive") == 8)
        waiting.append(asyncio.create_task(there.post(CHAT, json=BODY, headers=ALICE)))
        waiting.append(asyncio.create_task(there.post(CHAT, json=BODY, headers=BOB)))
        await stack.until_queued(10)
        assert await num_queued(stack) == {"interactive": 9, "interactive-1": 1}
        stack.backend.hold.set()
        await asyncio.gather(*waiting)


async def test_a_dead_frontends_requests_are_forgotten(stack: Stack, tmp_path: Path) -> None:
    path = key_file(tmp_path, max_concurrent=1)
    running = await stack.start_frontend(api_keys_file=path)
    ledger = running.frontend.process.ledger
    news = TenantGossip("frontend-dead", [TenantUse("alice", (1,))])
    await stack.cluster.nc.publish(stack.cluster.subjects.tenants, encode(news))
    await eventually(lambda: ledger.num_of_all_classes("alice") == 1)
    await stack.cluster.nc.publish(stack.cluster.subjects.tenants, b"rubbish")
    await eventually(lambda: ledger.num_of_all_classes("alice") == 0)


async def test_keys_are_read_again_when_their_file_changes(stack: Stack, tmp_path: Path) -> None:
    path = key_file(tmp_path)
    running = await stack.start_frontend(api_keys_file=path)
    async with running.client() as client:
        assert (await client.get("/v1/models", headers=ALICE)).status_code == 200
        path.write_text("keys: oops")
        await time_to_err(1.5)  # a file that cannot be used changes nothing
        assert (await client.get("/v1/models", headers=ALICE)).status_code == 200
        path.write_text("keys:\n- {name: carol, key: sk-c}\n")
        async for _ in Looks():
            if (await client.get("/v1/models", headers=ALICE)).status_code == 401:
                break
        carol = {"Authorization": "Bearer sk-c"}
        assert (await client.post(CHAT, json=BODY, headers=carol)).status_code == 200


async def test_a_class_has_its_own_limit(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend(queue_max_interactive=3, queue_max_batch=2)
    batch = {"X-Job-Class": "batch"}
    async with running.client() as client:
        waiting = [
            asyncio.create_task(client.post(CHAT, json=BODY, headers=batch)) for _ in range(2)
        ]
        await stack.until_queued(2)
        refused = await client.post(CHAT, json=BODY, headers=batch)
        assert_refused(refused, "queue_full", "2 batch requests of 'tiny'", "--queue-max-batch")
        waiting += [asyncio.create_task(client.post(CHAT, json=BODY)) for _ in range(3)]
        await stack.until_queued(5)
        await time_to_err(1.1)  # seen in the queue now, and not counted twice
        refused = await client.post(CHAT, json=BODY)
        assert_refused(refused, "queue_full", "3 interactive", "--queue-max-interactive")
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}


async def test_batch_never_crowds_out_interactive(stack: Stack) -> None:
    """The stream holds 8: the second half is kept for interactive requests."""
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    batch = {"X-Job-Class": "batch"}
    async with running.client() as client:
        waiting = [
            asyncio.create_task(client.post(CHAT, json=BODY, headers=batch)) for _ in range(4)
        ]
        await stack.until_queued(4)
        await eventually(lambda: running.frontend.side.streams.queue_watch.usage == 0.5)
        refused = await client.post(CHAT, json=BODY, headers=batch)
        assert_refused(refused, "queue_full", "they may use half of it")
        assert refused_by(running, "queue_full", "batch") == 1
        waiting += [asyncio.create_task(client.post(CHAT, json=BODY)) for _ in range(4)]
        await stack.until_queued(8)
        stack.backend.hold.set()
        assert {(await task).status_code for task in waiting} == {200}
