"""Putting requests into the queue when that fails: what is ended, what is kept, what is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from frontend.inference.admission.drain_rate import DrainRate
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, BrokerUnavailable, LimitReached, QueueClosed
from shared.protocol.codec import decode
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.protocol.role_cards import LevelRecord
from shared.token_log.request_queue import RequestQueue
from tests.eventually import eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.inference.test_accept import until_object_is_gone
from tests.frontend.inference.test_terminator import BODY, CHAT, KEY, terminator_of, until_ended
from tests.frontend.tiny_model import make_bundle, make_card, register
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

Put = Callable[[GenerateRequest, Callable[[], Awaitable[None]]], Awaitable[None]]


def queue_that(monkeypatch: pytest.MonkeyPatch, say: Put) -> None:
    """Answers as `say` does, which is given the request and what stores it."""
    put = RequestQueue.put

    async def put_and_say(
        queue: RequestQueue,
        request: GenerateRequest,
        lane: str,
        payload: bytes,
        *,
        may_be_stored: bool = False,
    ) -> None:
        async def store() -> None:
            await put(queue, request, lane, payload, may_be_stored=may_be_stored)

        await say(request, store)

    monkeypatch.setattr(RequestQueue, "put", put_and_say)


async def is_kept(stack: Stack, request: GenerateRequest) -> bool:
    objects = stack.cluster.objects(stack.cluster.subjects.objects_bucket)
    return await objects.find(request.prompt_object) is not None


async def until_settled(running: RunningFrontend) -> None:
    await eventually(lambda: not terminator_of(running)._tasks)


async def test_what_is_stored_while_its_frontend_leaves_is_ended(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has no answer, and would not know what to ask for."""
    stack.backend.hold.clear()
    running = await stack.start_frontend(shutdown_timeout_s=0.1)
    stored: asyncio.Queue[str] = asyncio.Queue()

    async def say(request: GenerateRequest, store: Callable[[], Awaitable[None]]) -> None:
        await store()
        stored.put_nowait(request.rid)
        await asyncio.Event().wait()

    queue_that(monkeypatch, say)
    async with running.client() as client:
        task = asyncio.create_task(client.post(CHAT, json=BODY))
        rid = await stored.get()
        running.frontend.shutdown.ask()
        await until_ended(stack, rid)
        await stack.until_queued(0)
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_a_keyed_request_that_was_refused_is_ended_though_it_is_stored(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, num_choices: int
) -> None:
    """Or it would run for nobody, and its key never stand for another try."""
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    rids: list[str] = []

    async def say(request: GenerateRequest, store: Callable[[], Awaitable[None]]) -> None:
        await store()
        rids.append(request.rid)
        if request.reply.choice_idx == num_choices - 1:
            raise BrokerError("not today")

    with monkeypatch.context() as patch:
        queue_that(patch, say)
        async with running.client(headers=KEY) as client:
            body = {**BODY, "n": num_choices}
            assert (await client.post(CHAT, json=body)).status_code == 503
    assert len(rids) == num_choices
    for rid in rids:
        await until_ended(stack, rid)


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_a_refused_prompt_goes_unless_another_frontend_has_a_reader(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, large_prompts: None, is_keyed: bool
) -> None:
    """With a key it may be the other one's request, which is in the queue."""
    first, second = await stack.start_frontend(), await stack.start_frontend()
    others = second.frontend.side.inference.ends.attachments
    tried: list[GenerateRequest] = []

    async def say(request: GenerateRequest, _: Callable[[], Awaitable[None]]) -> None:
        tried.append(request)
        if is_keyed:
            await others.join(request.rid, request.reply)
        raise LimitReached("full")

    queue_that(monkeypatch, say)
    async with first.client(headers=KEY if is_keyed else {}) as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 429
    await until_settled(first)
    (request,) = tried
    assert request.prompt_object
    if is_keyed:
        assert await is_kept(stack, request)
        assert await stack.cluster.ownership.last(request.rid) is None
    else:
        await until_object_is_gone(stack, request.prompt_object)


async def test_a_response_that_may_be_queued_keeps_its_record(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another frontend, whose client has the same key, reads it."""
    monkeypatch.setattr("frontend.inference.submitter._PATIENCE_S", 0.0)
    stack.backend.hold.clear()
    first, second = await stack.start_frontend(), await stack.start_frontend()
    others = second.frontend.side.inference.ends.attachments
    rids: list[str] = []

    async def say(request: GenerateRequest, store: Callable[[], Awaitable[None]]) -> None:
        await store()
        await others.join(request.rid, request.reply)
        rids.append(request.rid)
        raise BrokerUnavailable("its answer was lost")

    queue_that(monkeypatch, say)
    async with first.client(headers=KEY) as client:
        refused = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
        assert refused.status_code == 503
    await until_settled(first)
    (rid,), subjects = rids, stack.cluster.subjects
    record = await stack.cluster.js.get_last(subjects.responses_stream, subjects.response(rid))
    assert record is not None
    assert await stack.cluster.ownership.last(rid) is None


async def test_what_a_queue_stored_before_it_was_closed_is_ended(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.inference.inference._GOING_OVER_S", 0.1)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    rids: list[str] = []

    async def say(request: GenerateRequest, store: Callable[[], Awaitable[None]]) -> None:
        rids.append(request.rid)
        if len(rids) > 1:
            raise QueueClosed("the service has moved")
        await store()
        raise BrokerUnavailable("its answer was lost")

    queue_that(monkeypatch, say)
    async with running.client() as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 503
    await until_ended(stack, rids[0])
    await stack.until_queued(0)


async def test_nobody_waits_for_the_queue_beyond_the_deadline(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await stack.start_frontend()

    async def say(*_: object) -> None:
        raise BrokerUnavailable("servers choose a leader")

    queue_that(monkeypatch, say)
    began = time.monotonic()
    async with running.client(headers={"X-Request-Timeout": "0.3"}) as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 503
    assert time.monotonic() - began < 5.0, "others are waited for twice as long"


async def test_a_request_larger_than_a_message_is_413(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.protocol.prompt_object.INLINE_PROMPT_BYTES", 1 << 30)
    bundle = make_bundle()
    await register(stack.cluster, bundle, make_card(bundle, "tiny", max_context_len=400_000))
    running = await stack.start_frontend()
    async with running.client() as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": "x" * 300_000}
        refused = await client.post("/v1/completions", json=body)
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_what_is_sent_again_says_that_it_may_be_a_copy(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_keyed: bool
) -> None:
    """A worker then claims it before an engine is given it, and a full queue is no proof.

    Of a key another frontend may send it, too.
    """
    running = await stack.start_frontend()
    tries: list[tuple[GenerateRequest, bool]] = []
    put = RequestQueue.put

    async def answer_none_but_the_third(
        queue: RequestQueue,
        request: GenerateRequest,
        lane: str,
        payload: bytes,
        *,
        may_be_stored: bool = False,
    ) -> None:
        tries.append((decode(GenerateRequest, payload), may_be_stored))
        if len(tries) == 1:
            raise BrokerUnavailable("servers choose a leader")
        await put(queue, request, lane, payload, may_be_stored=may_be_stored)
        if len(tries) == 2:
            raise BrokerUnavailable("its answer was lost")

    monkeypatch.setattr(RequestQueue, "put", answer_none_but_the_third)
    async with running.client(headers=KEY if is_keyed else {}) as client:
        answer = await client.post(CHAT, json=BODY)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"
    assert [may_be_stored for _, may_be_stored in tries] == [is_keyed, True, True]
    assert [sent.may_be_copy for sent, _ in tries] == [is_keyed, True, True]
    assert {sent.level for sent, _ in tries} == {FEATURE_LEVEL}


async def test_a_full_store_of_prompts_is_429_and_counted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, large_prompts: None
) -> None:
    running = await stack.start_frontend()

    async def is_full(*_: object) -> None:
        raise LimitReached("maximum bytes exceeded")

    monkeypatch.setattr(ModelCatalog, "put_object", is_full)
    async with running.client() as client:
        refused = await client.post(CHAT, json=BODY)
        metrics = (await client.get("/metrics")).text
    assert refused.status_code == 429
    assert "--objects-max-bytes" in refused.json()["error"]["message"]
    assert int(refused.headers["Retry-After"]) > 1
    refusals = [line for line in metrics.splitlines() if "requests_refused_total{" in line]
    assert [line for line in refusals if '"queue_full"' in line and line.endswith(" 1.0")]


@pytest.fixture
async def older_streams(nats_server: NatsServer) -> None:
    """As an earlier release has made them."""
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "older", first_level=1):
        pass


async def test_what_older_workers_would_draw_otherwise_waits_for_the_level(
    older_streams: None, stack: Stack
) -> None:
    running = await stack.start_frontend()
    body = {**BODY, "dry_multiplier": 0.8}
    async with running.client() as client:
        refused = await client.post(CHAT, json=body)
        assert refused.status_code == 503
        assert "fields of feature level 2" in refused.json()["error"]["message"]
        level = running.frontend.side.streams.cluster.level
        await level.put(LevelRecord(FEATURE_LEVEL), (await level.read()).revision)
        await level.read()
        assert (await client.post(CHAT, json=body)).status_code == 200


async def test_a_group_is_told_to_wait_until_there_is_room_for_all_of_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say(_: GenerateRequest, __: Callable[[], Awaitable[None]]) -> None:
        raise LimitReached("maximum messages exceeded", 10077)

    queue_that(monkeypatch, say)
    monkeypatch.setattr(DrainRate, "per_s", 0.25)
    running = await stack.start_frontend()
    async with running.client() as client:
        alone = await client.post(CHAT, json=BODY)
        group = await client.post(CHAT, json={**BODY, "n": 3})
    assert (alone.status_code, group.status_code) == (429, 429)
    assert (alone.headers["Retry-After"], group.headers["Retry-After"]) == ("4", "12")
