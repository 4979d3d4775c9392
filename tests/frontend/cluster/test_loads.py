"""Loads: cards of workers and depths of queues, as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec import structs

from frontend.cluster.loads import loads_view
from frontend.cluster.queue_metrics import QueueMetrics
from frontend.openapi.document import openapi_document
from shared.catalog.model_status import PoolHeartbeats
from shared.protocol.codec import encode
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.snapshot.cluster_reader import ClusterReader
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth
from tests.frontend.conftest import Stack
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.tiny_model import make_bundle, register
from tests.frontend.tiny_model import make_card as make_model_card


def make_card(worker: str, pool: str = "p", **fields: Any) -> WorkerCard:
    return WorkerCard(worker, pool, **{"model": "tiny", "revision": "r", **fields})


BUSY = make_card(
    "worker-1",
    state=WorkerState.READY,
    num_running=3,
    num_waiting=2,
    max_running=4,
    kv_cache_usage=1 - 700 / 1000,
    num_kv_tokens=1000,
    num_waiting_tokens=50,
)
LOADING = make_card("worker-2", model="other", state=WorkerState.LOADING)
QUEUES = [QueueDepth("tiny", "interactive", 7, 5), QueueDepth("other", "batch", 1, 0)]


def make_snapshot(
    at: float, workers: Sequence[WorkerCard], queues: Sequence[QueueDepth]
) -> ClusterSnapshot:
    return ClusterSnapshot(
        at=at,
        models=[],
        heartbeats=PoolHeartbeats({}, {}),
        workers=workers,
        tokens_per_s={},
        step_age_s={},
        queues=queues,
        roles=[],
        events={},
        num_dead=0,
    )


def shown(snapshot: ClusterSnapshot) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(loads_view(snapshot, "1"))
    return view


def test_waiting_counts_in_queue_and_engine() -> None:
    loads = make_snapshot(1_790_000_000.5, [BUSY, LOADING], QUEUES)
    view = shown(loads)
    assert view["timestamp"] == "2026-09-21T14:13:20.500000+00:00"
    busy, loading = view["loads"]
    assert (busy["num_used_tokens"], busy["num_total_tokens"]) == (300, 350)
    assert (busy["token_usage"], busy["utilization"]) == (0.3, 0.75)
    assert (loading["state"], loading["utilization"], loading["dp_rank"]) == ("loading", 0, 1)
    aggregate = view["aggregate"]
    assert aggregate["total_running_reqs"] == 3
    assert aggregate["total_waiting_reqs"] == 2 + 7 + 1
    assert aggregate["total_reqs"] == 13
    assert aggregate["avg_utilization"] == 0.375
    of_one = shown(loads.of_model("other"))
    assert [worker["worker"] for worker in of_one["loads"]] == ["worker-2"]
    assert of_one["aggregate"]["total_waiting_reqs"] == 1
    assert shown(make_snapshot(0.0, [], []))["aggregate"]["avg_token_usage"] == 0


@pytest.mark.integration
async def test_http_and_nats_tell_cards_and_queue(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks = 0
    look = ClusterReader._read

    async def counted(reader: ClusterReader) -> ClusterSnapshot:
        nonlocal num_looks
        num_looks += 1
        reader._max_age_s = 60.0
        return await look(reader)

    async def nothing(_: QueueMetrics) -> None: ...

    monkeypatch.setattr(ClusterReader, "_read", counted)
    monkeypatch.setattr(QueueMetrics, "run", nothing)  # it looks as well
    bundle = make_bundle()
    card = make_model_card(bundle, "idle")  # nobody pulls for it
    await register(stack.cluster, bundle, card)
    workers = stack.cluster.bucket(stack.cluster.subjects.workers_bucket)
    await workers.put(f"{card.pool}.worker-1", encode(structs.replace(BUSY, model="idle")))
    running = await stack.start_frontend()
    async with running.client() as http:
        body = {"model": "idle", "prompt": "x"}
        waiting = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in "123"]
        await stack.until_queued(3)
        answers = await asyncio.gather(*(http.get("/v1/loads?model=idle") for _ in range(8)))
        loads = answers[0].json()
        assert {answer.content for answer in answers} == {answers[0].content}
        assert num_looks == 1
        schemas = openapi_document("0")["components"]["schemas"]
        root = {"$ref": "#/components/schemas/Loads", "components": {"schemas": schemas}}
        Draft202012Validator(root).validate(loads)
        assert [worker["worker"] for worker in loads["loads"]] == ["worker-1"]
        depths = {queue["class"]: queue["num_waiting"] for queue in loads["queues"]}
        assert depths == {"interactive": 3, "batch": 0}
        assert loads["aggregate"]["total_reqs"] == 3 + 2 + 3
        assert (await ask(stack, "loads", {"model": "idle"})).data == answers[0].content
        of_all = json.loads((await ask(stack, "loads", {})).data)
        assert of_all["loads"] == loads["loads"]
        assert {queue["model"] for queue in of_all["queues"]} == {"idle", "tiny"}
        for query, status, param in (
            ("model=no", 404, "model"),
            ("dp_rank=0", 400, "dp_rank"),
            ("format=prometheus", 400, "format"),
        ):
            answer = await http.get(f"/v1/loads?{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        for request in waiting:
            request.cancel()
        await asyncio.wait(waiting)
