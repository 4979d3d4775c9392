"""What clients are told of models that are not served, or not yet, or not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from shared.catalog.model_catalog import ModelCatalog
from shared.protocol.codec import encode
from shared.protocol.log_records import End
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard, WorkerState
from tests.eventually import Looks, eventually
from tests.frontend.conftest import Stack
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.frontend.inference.test_queue_timeout import claim, queued
from tests.frontend.tiny_model import make_bundle, make_card, register
from tests.jetflock.test_chat import chat
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


async def put_worker(stack: Stack, pool: str, state: WorkerState = WorkerState.READY) -> None:
    workers = stack.cluster.bucket(stack.cluster.subjects.workers_bucket)
    await workers.put(f"{pool}.w", encode(WorkerCard("w", pool, "m", "r1", state)))


async def heartbeats(stack: Stack, pool: str, state: WorkerState) -> None:
    """A card does not live as long as a program may take to start."""
    while True:
        await put_worker(stack, pool, state)
        await asyncio.sleep(1.0)


async def put_supervisor(stack: Stack, failure: str = "") -> None:
    roles = stack.cluster.bucket(stack.cluster.subjects.roles_bucket)
    card = RoleCard("serve-1", SUPERVISOR, pool=stack.card.pool, failure=failure)
    await roles.put("serve-1", encode(card))


async def add_model(stack: Stack, name: str, **changes: Any) -> str:
    card = make_card(bundle := make_bundle(), name, **changes)
    await register(stack.cluster, bundle, card)
    return card.pool


async def until(
    client: httpx.AsyncClient, path: str, condition: Callable[[httpx.Response], object]
) -> httpx.Response:
    async for _ in Looks():
        if condition(answer := await client.get(path)):
            break
    return answer


def statuses(answer: httpx.Response) -> list[tuple[str, str]]:
    return [(model["id"], model["status"]) for model in answer.json()["data"]]


async def test_those_that_are_served_come_first(stack: Stack) -> None:
    ready = await add_model(stack, "z-ready", created=1_800_000_000)
    await add_model(stack, "kept", is_kept=True)
    await add_model(stack, "not-announced", is_announced=False)
    await put_worker(stack, ready)
    running = await stack.start_frontend()
    async with running.client() as client:
        expected = [("z-ready", "ready"), ("kept", "idle"), ("tiny", "absent")]
        await until(client, "/v1/models", lambda answer: statuses(answer) == expected)
        one = await client.get("/v1/models/kept")
        assert one.json()["status"] == "idle"


async def test_a_worker_that_has_loaded_a_model_lists_it(stack: Stack) -> None:
    """Whatever became of the card."""
    pool = await add_model(stack, "new", is_announced=False)
    running = await stack.start_frontend()
    async with running.client() as client:
        body = {**BODY, "model": "new"}
        refused = await client.post(CHAT, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert "Served: tiny." in refused.json()["error"]["message"]
        await put_worker(stack, pool, WorkerState.LOADING)
        async for _ in Looks():
            if (refused := await client.post(CHAT, json=body)).status_code != 404:
                break
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
        assert refused.headers["retry-after"] == "10"
        await put_worker(stack, pool)
        await until(client, "/v1/models", lambda answer: ("new", "ready") in statuses(answer))


async def test_who_asks_for_what_nobody_serves_is_told_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await add_model(stack, "served")
    await put_worker(stack, pool)
    monkeypatch.setattr("frontend.models.model_directory._ABSENCE_S", 0.5)
    running = await stack.start_frontend()
    async with running.client() as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200, "it may come back"
        async for _ in Looks():
            await put_worker(stack, pool)
            if (refused := await client.post(CHAT, json=BODY)).status_code == 503:
                break
        error = refused.json()["error"]
        assert error["code"] == "model_not_served"
        assert error["message"] == (
            "The model 'tiny' is not served: no worker of it lives. Served: served."
        )
        assert (await client.get("/health/ready")).status_code == 200, "another one is served"
        tokens = await client.post("/tokenize", json={"prompt": "hi"})
        assert tokens.status_code == 200, "by the only one that is served"
        await put_supervisor(stack)
        await until(client, "/v1/models", lambda answer: ("tiny", "idle") in statuses(answer))
        assert (await client.post(CHAT, json=BODY)).status_code == 200


async def test_ready_means_that_a_model_is_served(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    hidden = msgspec.structs.replace(stack.card, is_announced=False)
    await cards.put(stack.card.pool, encode(hidden))
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await until(client, "/ready", lambda answer: answer.status_code == 503)
        assert "no model is served" in answer.text
        loading = asyncio.create_task(heartbeats(stack, stack.card.pool, WorkerState.LOADING))
        await until(
            client, "/ready", lambda answer: "The model 'tiny' is being loaded." in answer.text
        )
        assert (await client.get("/live")).status_code == 200
        for url, told in (
            (running.url, "The model 'tiny' is being loaded."),
            (stack.server.url, "A worker may still be loading one"),
        ):
            early = await chat("hi", url=url)
            assert (early.returncode, early.stdout) == (1, "")
            assert f"{url} serves no model that generates text. {told}" in early.stderr
        loading.cancel()
        await ModelCatalog(stack.cluster).announce(stack.card.pool)
        await until(client, "/ready", lambda answer: answer.status_code == 200)
        await put_supervisor(stack, "CUDA is out of memory")
        answer = await until(client, "/ready", lambda answer: answer.status_code == 503)
        assert "die before they are ready: CUDA is out of memory" in answer.text


async def test_who_waits_for_workers_that_fail_is_told_their_last_words(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.models.model_directory._HOPELESS_S", 1.0)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        await put_supervisor(stack)
        await until(client, "/v1/models", lambda answer: ("tiny", "idle") in statuses(answer))
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        background = await client.post(
            "/v1/responses", json={"model": "tiny", "input": "hi", "background": True}
        )
        assert background.status_code == 200
        await put_supervisor(stack, "no such GPU")
        await until(client, "/v1/models", lambda answer: ("tiny", "failed") in statuses(answer))
        refused = await client.post(CHAT, json=BODY)
        assert refused.status_code == 503
        assert "no such GPU" in refused.json()["error"]["message"]
        ended = stack.cluster.ownership
        async for _ in Looks(longest_pause_s=0.2):
            if running.metrics.answers.ended.labels("unserved").value:
                break
            await put_supervisor(stack, "no such GPU")
        stack.backend.hold.set()
        answer = await waiting
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_not_served"
        assert "no such GPU" in answer.json()["error"]["message"]
        assert running.metrics.answers.ended.labels("unserved").value == 1, "nobody waits for it"
        rid = background.json()["id"].removeprefix("resp_")
        last = await ended.last(rid)
        assert last is None or not isinstance(last.record, End)


async def test_what_a_worker_has_claimed_is_not_given_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.models.model_directory._HOPELESS_S", 0.5)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        task = asyncio.create_task(client.post(CHAT, json=BODY))
        request = await queued(stack)
        await claim(stack, request)
        for _ in range(10):
            await put_supervisor(stack, "no such GPU")
            await time_to_err(0.2)
        last = await stack.cluster.ownership.last(request.rid)
        assert last is not None
        assert not isinstance(last.record, End)
        task.cancel()


async def test_who_waits_for_a_model_that_is_withdrawn_is_told(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.models.model_directory._HOPELESS_S", 0.5)
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        assert await ModelCatalog(stack.cluster).withdraw(stack.card.pool)
        await eventually(lambda: running.metrics.answers.ended.labels("unserved").value)
        stack.backend.hold.set()
        answer = await waiting
        assert answer.status_code == 503
        assert "withdrawn" in answer.json()["error"]["message"]
