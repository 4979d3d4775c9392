"""The view of the cluster: what is told, to whom, and what it costs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.cluster.cluster_answer import ClusterHistoryView, ClusterView
from frontend.cluster.queue_metrics import QueueMetrics
from frontend.cluster.request_paths import Left
from frontend.routes.cluster_events import merge_patch
from shared.liveness.pool_events import PoolEvents
from shared.protocol.codec import encode
from shared.protocol.log_records import Claim, Release
from shared.protocol.role_cards import (
    SUPERVISOR,
    GpuCard,
    RoleCard,
    WorkDone,
    WorkerCard,
    WorkerState,
)
from shared.snapshot.cluster_reader import ClusterReader, TokenRates
from shared.snapshot.cluster_snapshot import ClusterSnapshot
from tests.eventually import Looks, eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.told_answers import check_answer
from tests.time_to_err import time_to_err

integration = pytest.mark.integration
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 4}


def make_card(worker: str, **fields: Any) -> WorkerCard:
    known = {"model": "tiny", "revision": "r", "state": WorkerState.READY}
    return WorkerCard(worker, "p", **{**known, **fields})


def applied(document: Any, patch: Any) -> Any:
    """RFC 7396, as its pseudocode has it."""
    if not isinstance(patch, dict):
        return patch
    target = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = applied(target.get(name), value)
    return target


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"w": {"x": {"n": 1, "m": 2}}}, {"w": {"x": {"n": 3, "m": 2}}}, {"w": {"x": {"n": 3}}}),
        ({"w": {"x": {"n": 1}}}, {"w": {}}, {"w": {"x": None}}),
        ({"w": {}}, {"w": {"x": {}}}, {"w": {"x": {}}}),
        ({"p": [1]}, {"p": [1, 2]}, {"p": [1, 2]}),
        ({"p": 0}, {"p": False, "q": {}}, {"q": {}}),
    ],
)
def test_patches_hold_what_changed_and_make_it(before: Any, after: Any, patch: Any) -> None:
    assert merge_patch(before, after) == patch
    assert applied(before, patch) == after


def test_rates_are_of_the_workers_own_clocks() -> None:
    rates = TokenRates()

    def note(at: float, num_tokens: int) -> Any:
        return rates.note([make_card("a", at=at, work=WorkDone(num_generated=num_tokens))])

    assert note(100.0, 50) == {}
    assert note(101.0, 150) == {"a": 100.0}
    assert note(101.0, 150) == {"a": 100.0}, "the same card again"
    assert note(103.0, 150) == {"a": 0.0}
    assert note(200.0, 9999) == {}, "nobody looked meanwhile"
    assert rates.note([]) == {}


async def put_cards(stack: Stack, *cards: WorkerCard) -> None:
    workers = stack.cluster.bucket(stack.cluster.subjects.workers_bucket)
    for card in cards:
        await workers.put(f"{card.pool}.{card.worker}", encode(card))


@asynccontextmanager
async def watched(
    running: RunningFrontend, **headers: str
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Events of the stream, by name."""
    async with (
        running.client(headers=headers) as http,
        http.stream("GET", "/cluster/events") as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events_of(answer)


async def events_of(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@integration
async def test_the_document_tells_everything(stack: Stack) -> None:
    subjects = stack.cluster.subjects
    busy = make_card(
        "worker-1",
        num_running=3,
        max_running=4,
        kv_cache_usage=0.25,
        host="h",
        pid=7,
        work=WorkDone(num_released=2, num_redelivered=5, num_prefix_queries=10, num_prefix_hits=4),
        gpu=GpuCard("NVIDIA H100", "bfloat16", "bfloat16", "triton", total_bytes=80, free_bytes=9),
        remark="runs without CUDA graphs",
        weights="gptq 4-bit",
    )
    loading = make_card("worker-2", state=WorkerState.LOADING, phase="weights", progress=0.5)
    await put_cards(stack, busy, loading)
    roles = stack.cluster.bucket(subjects.roles_bucket)
    await roles.put("detok-1", encode(RoleCard("detok-1", "detok", num_fenced=6)))
    supervisor = RoleCard("serve-1", SUPERVISOR, pool="p", failure="no GPU")
    await roles.put("serve-1", encode(supervisor))
    await PoolEvents(stack.cluster.nc, subjects, "p", "tiny").publish_worker("worker-2", "loading")
    await stack.cluster.js.publish(subjects.dead("p"), b"x")
    running = await stack.start_frontend(admin_url="http://127.0.0.1:8001")
    async with running.client() as http:
        answered = await http.post("/v1/completions", json={**BODY, "stream": True})
        async for _ in Looks():  # the snapshot may be older than its first heartbeat
            document = (await http.get("/cluster")).json()
            if document["frontends"]:
                break
    check_answer(ClusterView, document)
    assert document["admin_url"] == "http://127.0.0.1:8001"
    assert list(document["models"]) == ["tiny"]
    assert document["workers"]["worker-1"]["kv_cache_usage"] == 0.25
    assert document["workers"]["worker-1"]["pid"] == 7
    assert document["workers"]["worker-1"]["gpu"]["free_bytes"] == 9
    assert document["workers"]["worker-1"]["weights"] == "gptq 4-bit"
    assert "gpu" not in document["workers"]["worker-2"]
    assert "weights" not in document["workers"]["worker-2"]
    assert document["figures"]["at"] == document["at"]
    assert (document["figures"]["num_running"], document["figures"]["max_running"]) == (3, 4)
    assert document["workers"]["worker-2"]["phase"] == "weights"
    assert document["queues"]["tiny"]["interactive"]["num_waiting"] == 0
    assert document["totals"] == {
        "num_redelivered": 5,
        "num_released": 2,
        "num_fenced_writes": 6,
        "num_dead": 1,
    }
    assert list(document["frontends"]) == [running.frontend_id]
    assert list(document["detokenizers"]) == ["detok-1"]
    assert document["supervisors"]["serve-1"]["failure"] == "no GPU"
    [event] = document["events"].values()
    assert (event["worker"], event["state"]) == ("worker-2", "loading")
    request = document["requests"][answered.headers["x-request-id"]]
    assert (request["status"], request["finish"]) == (200, "stop")
    assert request["num_output_tokens"] > 0
    assert request["e2e_ms"] >= request["ttft_ms"] > 0


@integration
async def test_a_stream_tells_a_snapshot_and_then_what_changes(stack: Stack) -> None:
    await put_cards(stack, make_card("worker-1", num_running=1), make_card("worker-2"))
    running = await stack.start_frontend()
    async with watched(running) as events, asyncio.timeout(20):
        name, document = await anext(events)
        assert name == "snapshot"
        while not document["models"]:  # the snapshot may be older than the first look at them
            name, patch = await anext(events)
            assert name == "change"
            document = applied(document, patch)
        workers = stack.cluster.bucket(stack.cluster.subjects.workers_bucket)
        await workers.delete("p.worker-2")
        await put_cards(stack, make_card("worker-1", num_running=2))
        changes = []
        while "worker-2" in document["workers"]:
            name, patch = await anext(events)
            assert name == "change"
            document = applied(document, patch)
            changes.append(patch)
        assert document["workers"]["worker-1"]["num_running"] == 2
        assert "models" not in changes[-1], "they are the same"
        running.frontend.shutdown.ask()
        assert not [name async for name, _ in events if name != "change"], "it ends with its server"


@integration
async def test_tenants_see_the_queue_and_their_own_requests(stack: Stack, tmp_path: Path) -> None:
    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("alice", "bob", "olga")}
    entries = [{"name": name, "key_sha256": digest} for name, digest in keys.items()]
    entries[2]["operator"] = True  # type: ignore[assignment]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": entries}))
    await put_cards(stack, make_card("worker-1", host="secret-host", pid=7))
    events = PoolEvents(stack.cluster.nc, stack.cluster.subjects, "p", "tiny")
    await events.publish_worker("worker-1", "gone", "killed by SIGKILL")
    running = await stack.start_frontend(
        api_keys_file=tmp_path / "keys.json", api_key=("nameless",), admin_url="http://a.internal"
    )

    async def document(key: str) -> Any:
        async with running.client(headers={"authorization": f"Bearer {key}"}) as http:
            answer = await http.get("/cluster")
        assert answer.status_code == 200
        return answer.json()

    ids = {}
    for key in ("alice", "bob"):
        async with running.client(headers={"authorization": f"Bearer {key}"}) as http:
            answer = await http.post("/v1/completions", json=BODY)
            ids[key] = answer.headers["x-request-id"]
            history = (await http.get("/cluster/history")).json()
            check_answer(ClusterHistoryView, history)
            assert "num_fenced" not in json.dumps(history)
    for key, seen_ids in (("alice", {ids["alice"]}), ("bob", {ids["bob"]}), ("nameless", set())):
        seen = await document(key)
        check_answer(ClusterView, seen)
        assert seen["requests"].keys() == seen_ids
        assert seen["workers"]["worker-1"]["state"] == "ready"
        text = json.dumps(seen)
        for secret in ("secret-host", "SIGKILL", "a.internal", "detokenizers", '"tenant"', '"pid"'):
            assert secret not in text
        host = seen["events"]
        assert all("host" not in event for event in host.values())
    everything = await document("olga")
    assert everything["requests"].keys() == set(ids.values())
    assert everything["requests"][ids["alice"]]["tenant"] == "alice"
    assert everything["workers"]["worker-1"]["host"] == "secret-host"
    async with running.client() as http:
        for path in ("/cluster", "/cluster/events", "/cluster/history"):
            for key in ("", "Bearer wrong"):
                assert (await http.get(path, headers={"authorization": key})).status_code == 401
            assert (await http.post(path)).status_code == 405


@integration
async def test_what_was_before_anybody_looked_is_known(stack: Stack) -> None:
    await put_cards(stack, make_card("worker-1", num_running=1, max_running=4))
    running = await stack.start_frontend()
    async with running.client() as http:
        async for _ in Looks():  # it has not looked by itself
            history = (await http.get("/cluster/history")).json()
            if "worker-1" in history["slot_usage"]:
                break
    check_answer(ClusterHistoryView, history)
    assert history["slot_usage"]["worker-1"][-1] == 0.25
    assert history["samples"][-1]["num_running"] == 1
    assert "num_fenced" in history["samples"][-1]


@integration
async def test_a_key_that_is_taken_out_watches_no_more(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    both = [{"name": name, "key": name, "operator": True} for name in ("olga", "oscar")]
    file.write_text(json.dumps({"keys": both}))
    running = await stack.start_frontend(api_keys_file=file)
    async with watched(running, authorization="Bearer olga") as events, asyncio.timeout(20):
        assert (await anext(events))[0] == "snapshot"
        file.write_text(json.dumps({"keys": both[1:]}))
        async for _ in events:
            pass


@integration
async def test_paths_name_the_workers_and_why_they_were_left(stack: Stack) -> None:
    stack.say("Hello", never_finish=True)
    running = await stack.start_frontend()
    ownership = stack.cluster.ownership
    async with running.client() as http, asyncio.timeout(20):
        asking = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await eventually(lambda: stack.backend.runs)
        [run] = stack.backend.runs.values()
        request, seq = run.request, 0

        async def path() -> list[tuple[str, str | None]]:
            seen = (await http.get("/cluster")).json()["requests"][run.reply.group_id]
            [hops] = seen["paths"]
            return [(hop["worker"], hop.get("left")) for hop in hops]

        async def told(*expected: tuple[str, str | None]) -> None:
            async for _ in Looks(longest_pause_s=0.1):
                if await path() == list(expected):
                    break

        async def claim(worker: str, after_death: bool = False) -> int:
            text, reply = request.text, request.reply
            record = Claim(seq, worker, "", 1, "", "", text, reply, request.pool, after_death)
            return await ownership.append(request.rid, record)

        seq = await claim("a")
        await told(("a", None))
        seq = await ownership.append(request.rid, Release(seq, "a"))
        seq = await claim("b")
        await told(("a", Left.RELEASED), ("b", None))
        seq = await claim("c", after_death=True)
        seq = await claim("d")
        seq = await ownership.append(request.rid, Release(seq, "d", crashed=True))
        seq = await claim("e")
        lefts = (Left.RELEASED, Left.DIED, Left.OVERTAKEN, Left.ENGINE_CRASHED)
        await told(*zip("abcd", lefts, strict=True), ("e", None))
        await http.post("/abort_request", json={"rid": run.reply.group_id})
        assert (await asking).status_code == 499
        await told(*zip("abcde", (*lefts, Left.ENDED), strict=True))


@integration
async def test_an_answer_tells_its_path_to_its_own_client_on_any_frontend(stack: Stack) -> None:
    keys = ("mine", "another's")
    first, second = [await stack.start_frontend(api_key=keys) for _ in range(2)]
    mine, others = ({"authorization": f"Bearer {key}"} for key in keys)
    async with first.client() as here, second.client() as there:
        answer = await here.post("/v1/completions", json={**BODY, "n": 2}, headers=mine)
        for worker, run in zip("ab", stack.backend.runs.values(), strict=True):
            text, pool = run.request.text, run.request.pool
            record = Claim(0, worker, "", 1, "", "", text, run.reply, pool)
            await stack.cluster.ownership.append(run.request.rid, record)
        path = f"/v1/streams/{answer.headers['x-request-id']}/path"
        for client in (here, there):
            told = (await client.get(path, headers=mine)).json()
            assert told["rid"] == answer.headers["x-request-id"]
            assert [[hop["worker"] for hop in hops] for hops in told["paths"]] == [["a"], ["b"]]
            assert all("left" not in hop for hops in told["paths"] for hop in hops)
        assert (await there.get(path, headers=others)).status_code == 404
        assert (await there.get("/v1/streams/no-rid/path", headers=mine)).status_code == 404


@integration
async def test_looking_is_shared_and_stops_with_the_last_viewer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[ClusterReader] = []
    look = ClusterReader._read

    async def counted(reader: ClusterReader) -> ClusterSnapshot:
        looks.append(reader)
        return await look(reader)

    async def nothing(_: QueueMetrics) -> None: ...

    monkeypatch.setattr(ClusterReader, "_read", counted)
    monkeypatch.setattr(QueueMetrics, "run", nothing)  # it looks as well
    running = await stack.start_frontend()

    async def watch() -> None:
        async with watched(running) as events:
            for _ in range(3):
                await anext(events)

    async with running.client() as http, asyncio.timeout(30):
        assert (await http.get("/health")).status_code == 200
        assert not looks, "nobody watches"
        started_at = time.monotonic()
        await asyncio.gather(*(watch() for _ in range(8)))
        assert 3 <= len(looks) <= 2 + (time.monotonic() - started_at) / 0.9
        await running.frontend.side.inference.ends.answers.all_closed.wait()
        num_before = len(looks)
        await time_to_err(2.5)
        assert len(looks) == num_before
