"""A frontend of a service that moves: what was accepted before is found, what comes now goes over.

The backends of both sides are fakes, so that a test decides where something runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.cluster import usage
from frontend.cluster.usage import UsageBook, UsageQuery
from frontend.cluster.view import Viewer
from jetflock.stream_move import StreamMove
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.protocol.bills import Bill, BillBatch, encode_bills
from shared.protocol.finish import FinishReason
from shared.protocol.role_cards import MoveRecord
from shared.service.move import MoveRecords, is_queue_closed
from shared.subjects import rid_of
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import RunningFrontend, Stack, _end
from tests.frontend.fake_backend import FakeBackend, Script
from tests.frontend.tenants.test_key_rotation import write_keys
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
NEW = "blue"
COUNTED = "jetflock_frontend_request_success_total{"
QUEUE = "jetflock_frontend_queue_waiting_requests{"


@dataclass
class Moving:
    """A service with an old and a new side, of which the old one is in use."""

    stack: Stack
    new: Cluster
    move: StreamMove
    exits: AsyncExitStack

    async def announce(self) -> None:
        """Its backend takes requests from then on."""
        await self.move.prepare()
        backend = FakeBackend(self.new, self.stack.card, lambda request: Script(["New", " side"]))
        self.exits.push_async_callback(_end, backend, asyncio.create_task(backend.run()))
        await self.move.announce()

    async def go_over(self, *frontends: RunningFrontend) -> None:
        """And every frontend has seen it."""
        await self.announce()
        await self.move.close(20)
        for each in frontends:
            await eventually(each.frontend.inference.gone_over.is_set)


@pytest.fixture
async def moving(stack: Stack) -> AsyncIterator[Moving]:
    config = ClusterConfig(nats_url=stack.server.url, prefix=NEW, num_partitions=2)
    async with open_cluster(config, "test-new") as new, AsyncExitStack() as exits:
        yield Moving(stack, new, StreamMove(stack.cluster, new), exits)


async def ask(frontend: RunningFrontend, key: str = "", **fields: Any) -> httpx.Response:
    async with frontend.client() as client:
        headers = {"Idempotency-Key": key} if key else {}
        return await client.post(CHAT, json={**BODY, **fields}, headers=headers)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def test_new_requests_go_over_and_old_ones_end_where_they_are(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    frontend = await stack.start_frontend()
    stack.backend.hold.clear()  # what is queued there waits
    async with frontend.client() as client:
        waiting = asyncio.create_task(ask(frontend, "held"))
        await eventually_async(lambda: has_queued(stack, 1))
        await moving.go_over(frontend)
        assert text_of(await ask(frontend)) == "New side"
        assert await stack.num_queued() == 1
        # Sent again, it joins what waits on the old side.
        again = asyncio.create_task(ask(frontend, "held"))
        await eventually(lambda: frontend.metrics.acceptance.keyed.labels("joined").value)
        stack.backend.hold.set()
        first, second = await asyncio.gather(waiting, again)
        assert text_of(first) == text_of(second) == "Old side"
        assert first.json()["id"] == second.json()["id"]
        rid = first.headers["x-request-id"]
        resumed = await client.get(f"/v1/streams/{rid}", params={"stream": "false"})
        assert text_of(resumed) == "Old side"
        path = await client.get(f"/v1/streams/{rid}/path")
        assert path.status_code == 200
        unknown = await client.get("/v1/streams/" + "0" * 32)
        assert unknown.status_code == 404
        erased = await client.delete(f"/v1/streams/{rid}")
        assert erased.status_code == 200, erased.text
        gone = await client.get(f"/v1/streams/{rid}", params={"stream": "false"})
        assert gone.status_code == 404


async def has_queued(stack: Stack, num: int) -> bool:
    return await stack.num_queued() == num


async def test_a_request_that_meets_the_closed_queue_is_accepted_by_the_other(
    moving: Moving,
) -> None:
    frontend = await moving.stack.start_frontend()
    await moving.announce()
    await eventually(frontend.frontend.sides.knows_newer.is_set)
    # Nobody looks any more: only the refusal tells that the queue is closed.
    async with asyncio.TaskGroup() as tasks:
        asked: list[asyncio.Task[httpx.Response]] = []
        closing = tasks.create_task(moving.move.close(20))
        while not closing.done():
            asked.append(tasks.create_task(ask(frontend, f"key-{len(asked) // 2}")))
            await asyncio.sleep(0.01)
        asked += [tasks.create_task(ask(frontend)) for _ in range(5)]
    answers = [task.result() for task in asked]
    assert {answer.status_code for answer in answers} == {200}
    keyed = answers[:-5]
    for first, second in zip(keyed[::2], keyed[1::2], strict=False):
        assert first.json()["id"] == second.json()["id"]  # one request a key
    assert {text_of(answer) for answer in answers[-5:]} == {"New side"}


async def test_a_key_that_another_frontend_used_on_the_new_side_is_joined(moving: Moving) -> None:
    """Though this one has not seen yet that the queue is closed."""
    stack = moving.stack
    ahead, behind = [await stack.start_frontend() for _ in range(2)]
    await moving.announce()
    for each in (ahead, behind):
        await eventually(each.frontend.sides.knows_newer.is_set)
    behind.frontend.sides.move.look = never  # type: ignore[method-assign]
    await moving.move.close(20)
    await eventually(ahead.frontend.inference.gone_over.is_set)
    first = await ask(ahead, "key")
    second = asyncio.create_task(ask(behind, "key"))
    await time_to_err(0.3)
    assert not second.done()
    del behind.frontend.sides.move.look
    assert (await second).json()["id"] == first.json()["id"]


async def never() -> None:
    """In place of a look."""


async def test_files_batches_and_responses_of_the_old_side_stay(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    frontend = await stack.start_frontend()
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}
    async with frontend.client() as client:
        response = (
            await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
        ).json()
        upload = {"file": ("in.jsonl", json.dumps(line).encode())}
        file_id = (await client.post("/v1/files", files=upload, data={"purpose": "batch"})).json()[
            "id"
        ]
        stack.backend.hold.clear()
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        old_batch = (await client.post("/v1/batches", json=body)).json()["id"]
        await eventually_async(lambda: has_queued(stack, 1))
        await moving.go_over(frontend)
        stack.backend.hold.set()
        assert (await client.get(f"/v1/responses/{response['id']}")).json() == response
        follow_up = {
            "model": "tiny",
            "input": "And?",
            "previous_response_id": response["id"],
        }
        answer = await client.post("/v1/responses", json=follow_up)
        assert answer.status_code == 200, answer.text
        new_batch = (await client.post("/v1/batches", json=body)).json()["id"]
        outputs = {}
        for batch_id in (old_batch, new_batch):
            found = await completed(client, batch_id)
            content = await client.get(f"/v1/files/{found['output_file_id']}/content")
            outputs[batch_id] = content.text
        assert "Old side" in outputs[old_batch]
        assert "New side" in outputs[new_batch]
        listed = (await client.get("/v1/batches")).json()["data"]
        assert {each["id"] for each in listed} == {old_batch, new_batch}
        assert (await client.delete(f"/v1/responses/{response['id']}")).status_code == 200
        assert (await client.get(f"/v1/responses/{response['id']}")).status_code == 404
        assert (await client.delete(f"/v1/files/{file_id}")).status_code == 200
        assert (await client.get(f"/v1/files/{file_id}")).status_code == 404


async def test_a_conversation_comes_over_when_it_goes_on(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    frontend = await stack.start_frontend()
    async with frontend.client() as client:
        name = (await client.post("/v1/conversations", json={})).json()["id"]
        path, body = f"/v1/conversations/{name}", {"model": "tiny", "input": "Hi"}
        await client.post("/v1/responses", json={**body, "conversation": name})
        await moving.go_over(frontend)
        assert len((await client.get(f"{path}/items")).json()["data"]) == 2
        answer = await client.post("/v1/responses", json={**body, "conversation": name})
        assert answer.status_code == 200, answer.text
        items = (await client.get(f"{path}/items?order=asc")).json()["data"]
        said = [item["content"][0]["text"] for item in items if item["role"] == "assistant"]
        assert said == ["Old side", "New side"]
        assert (await client.delete(path)).status_code == 200
        assert (await client.get(path)).status_code == 404


async def completed(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_completed() -> bool:
        found.update((await client.get(f"/v1/batches/{batch_id}")).json())
        return bool(found["status"] == "completed")

    await eventually_async(is_completed, 20)
    return found


async def test_streams_of_the_old_side_are_forked_on_the_new_one(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    frontend = await stack.start_frontend(keep_requests="all")
    async with frontend.client() as client:
        kept = (await ask(frontend)).headers["x-request-id"]
        await eventually_async(lambda: has_queued(stack, 0))
        stack.backend.hold.clear()
        waiting = asyncio.create_task(ask(frontend, "held"))
        await eventually_async(lambda: has_queued(stack, 1))
        [queued] = [request async for request in waiting_rids(stack)]
        await moving.go_over(frontend)
        for source, at, given in ((kept, 1, 1), (queued, 0, 0)):
            answer = await client.post(f"/v1/streams/{source}/fork", json={"at": at})
            assert text_of(answer).endswith("New side")
            assert answer.headers["x-fork-at"] == str(given)
        assert await stack.num_queued() == 1
        stack.backend.hold.set()
        assert text_of(await waiting) == "Old side"
        listed = (await client.get("/v1/streams")).json()
        assert kept in {each["id"] for each in listed["data"]}
        none = await client.post(f"/v1/streams/{'0' * 32}/fork", json={"at": 0})
        assert none.status_code == 404


async def waiting_rids(stack: Stack) -> AsyncIterator[str]:
    subjects = stack.cluster.subjects
    scan = stack.cluster.js.direct_scan(subjects.requests_stream, subjects.requests("*", "*"))
    async for message in scan:
        yield rid_of(message.subject)


async def test_usage_is_that_of_both_sides_and_stays_when_one_is_gone(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_FRESH_S", 0.0)
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=1, bills_ttl_s=86_400.0)
    async with (
        open_cluster(config, "old") as old,
        open_cluster(replace(config, prefix=NEW), "new") as new,
    ):
        move, older = StreamMove(old, new), UsageBook(old)
        book = UsageBook(new, older=older)
        for cluster, num_tokens in ((old, 5), (new, 7)):
            bill = Bill("r", "r", time.time(), FinishReason.STOP, num_output_tokens=num_tokens)
            batch = encode_bills(BillBatch(2, 0, 0, [bill]))
            await cluster.js.publish(cluster.subjects.bills(0), batch)

        async def num_used() -> int:
            report = await book.usage(UsageQuery(by=()), Viewer("", is_operator=True))
            return sum(row.num_output_tokens for row in report.data)

        assert await num_used() == 12
        await move.prepare()
        await move.announce()
        await move.close(20)
        await move.delete_old(20)
        book.forget_older()
        assert await num_used() == 12
        assert await old.bucket(old.subjects.meta_bucket).get("incarnation") is not None
        with pytest.raises(BrokerError, match="stream not found"):
            await old.js.api(f"STREAM.INFO.KV_{old.subjects.usage_bucket}")
        assert (await old.js.api(f"STREAM.INFO.{old.subjects.bills_stream}"))["state"]["messages"]


async def test_a_frontend_that_starts_meanwhile_serves_both_sides(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    first = await stack.start_frontend()
    old = await ask(first, "key")
    await moving.go_over(first)
    late = await stack.start_frontend()
    assert late.frontend.inference.gone_over.is_set()
    assert (await ask(late, "key")).json()["id"] == old.json()["id"]
    assert text_of(await ask(late)) == "New side"


async def test_nothing_closes_while_a_frontend_does_not_follow(moving: Moving) -> None:
    frontend = await moving.stack.start_frontend()
    frontend.frontend.sides.move.look = never  # type: ignore[method-assign]
    await moving.announce()
    with pytest.raises(ConfigError, match=f"1 roles .*{frontend.frontend_id}"):
        await moving.move.close(1.5)
    assert not await is_queue_closed(moving.stack.cluster.js, moving.stack.cluster.subjects)
    moving.stack.say("Old", " side")
    assert text_of(await ask(frontend)) == "Old side"


async def test_old_streams_go_when_nothing_is_left_there(moving: Moving) -> None:
    stack = moving.stack
    old, config = stack.cluster, stack.cluster.config
    frontend = await stack.start_frontend()
    with pytest.raises(ConfigError, match="has not moved"):
        await moving.move.delete_old(5)
    await ask(frontend)
    await moving.go_over(frontend)
    with pytest.raises(ConfigError, match="1 results"):
        await moving.move.delete_old(5)
    assert text_of(await ask(frontend)) == "New side"
    await old.js.api(f"STREAM.PURGE.{old.subjects.results_stream}")
    await moving.move.delete_old(20)
    names = (await old.js.api("STREAM.NAMES"))["streams"]
    assert [name for name in names if "jf_" in name] == [f"KV_{old.subjects.meta_bucket}"]
    assert text_of(await ask(frontend)) == "New side"
    with pytest.raises(ConfigError, match="give --prefix blue"):
        async with open_cluster(config, "late"):
            pass


async def test_keys_are_read_and_the_loop_is_watched_when_the_old_streams_are_gone(
    moving: Moving, tmp_path: Path
) -> None:
    stack, keys = moving.stack, tmp_path / "keys.json"
    write_keys(keys, "before")
    frontend = await stack.start_frontend(api_keys_file=keys)
    await moving.go_over(frontend)
    await moving.move.delete_old(20)
    assert await models_by_nats(stack, "before") == ""
    write_keys(keys, "after")
    await eventually_async(lambda: is_refused(stack, "before"))
    assert await models_by_nats(stack, "after") == ""
    num_looks = looks_at_loop(frontend)
    await eventually(lambda: looks_at_loop(frontend) > num_looks)


async def models_by_nats(stack: Stack, key: str) -> str:
    """The status of an error; empty when there is none."""
    headers = {"Authorization": f"Bearer {key}"}
    answer = await stack.caller.request("jetflock.models", b"", 10, headers=headers)
    return (answer.headers or {}).get("Nats-Service-Error-Code", "")


async def is_refused(stack: Stack, key: str) -> bool:
    return await models_by_nats(stack, key) == "401"


def looks_at_loop(frontend: RunningFrontend) -> float:
    num = frontend.metrics.registry.get_sample_value("jetflock_event_loop_lag_seconds_count")
    assert num is not None
    return num


async def test_cluster_events_end_with_a_frontend_that_went_over(moving: Moving) -> None:
    frontend = await moving.stack.start_frontend(shutdown_timeout_s=0.0)
    await moving.go_over(frontend)
    async with frontend.client() as client, client.stream("GET", "/cluster/events") as events:
        lines = events.aiter_lines()
        assert await anext(lines) == "event: snapshot"
        frontend.frontend.shutdown.ask()
        async with asyncio.timeout(1.5):
            async for _ in lines:
                pass
    await asyncio.wait_for(frontend.task, 15)


async def test_a_service_moves_to_one_place(moving: Moving) -> None:
    stack = moving.stack
    await moving.announce()
    await moving.move.prepare()  # again
    await moving.move.announce()
    config = ClusterConfig(nats_url=stack.server.url, prefix="green")
    async with open_cluster(config, "test-green") as green:
        other = StreamMove(stack.cluster, green)
        with pytest.raises(ConfigError, match="already moves to 'blue'"):
            await other.announce()
        with pytest.raises(ConfigError, match="'blue', to which the service of prefix 'jf' moves"):
            await StreamMove(green, moving.new).prepare()
        with pytest.raises(ConfigError, match="from 'jf': end that first"):
            await StreamMove(moving.new, green).prepare()
    assert (await MoveRecords(stack.cluster.js, "jf").moved_to()).record == MoveRecord(NEW)


async def ask_by_nats(stack: Stack, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await stack.caller.request(f"jetflock.{subject}", json.dumps(body).encode(), 10)
    found: dict[str, Any] = json.loads(answer.data)
    return found


def content_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_the_nats_service_goes_over_too(moving: Moving) -> None:
    stack = moving.stack
    stack.say("Old", " side")
    frontend = await stack.start_frontend()
    old = await ask_by_nats(stack, "chat.completions", BODY)
    stack.backend.hold.clear()
    held = asyncio.create_task(ask_by_nats(stack, "chat.completions", BODY))
    await eventually_async(lambda: has_queued(stack, 1))
    await moving.go_over(frontend)
    new = await ask_by_nats(stack, "chat.completions", BODY)
    assert [content_of(old), content_of(new)] == ["Old side", "New side"]
    stack.backend.hold.set()
    assert content_of(await held) == "Old side"
    for answer in (old, new):
        rid = answer["id"].removeprefix("chatcmpl-")
        again = await ask_by_nats(stack, "resume", {"rid": rid, "stream": False})
        assert content_of(again) == content_of(answer)
    assert (await ask_by_nats(stack, "models", {}))["data"][0]["id"] == "tiny"


async def test_probes_and_metrics_stay_whole(moving: Moving) -> None:
    """Before, while both sides are served, and when the old one is gone."""
    stack = moving.stack
    frontend = await stack.start_frontend()
    await ask(frontend)
    await assert_well(frontend, num_requests=1)
    await moving.announce()
    await eventually(frontend.frontend.sides.knows_newer.is_set)
    await assert_well(frontend, num_requests=1)
    await moving.move.close(20)
    await eventually(frontend.frontend.inference.gone_over.is_set)
    await ask(frontend)
    await assert_well(frontend, num_requests=2)
    await stack.cluster.js.api(f"STREAM.PURGE.{stack.cluster.subjects.results_stream}")
    await moving.move.delete_old(20)
    await ask(frontend)
    await assert_well(frontend, num_requests=3)


async def assert_well(frontend: RunningFrontend, num_requests: int) -> None:
    """It is ready, each metric is told once, and what it counted before is not forgotten."""
    async with frontend.client() as client:
        ready = await client.get("/health/ready")
        assert ready.status_code == 200, ready.text

        async def shows_queue() -> bool:
            return QUEUE in (await client.get("/metrics")).text

        await eventually_async(shows_queue)
        page = (await client.get("/metrics")).text
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(series) == len(set(series))
    counted = [line for line in lines if line.startswith(COUNTED)]
    assert [float(line.rsplit(" ", 1)[1]) for line in counted] == [num_requests]
