"""Streams that are nearly full: nothing new comes in, what is in ends, and all hear of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from frontend.stored.batches import batch_driver as driver
from shared.broker.jetstream import JetStream
from shared.errors import CasConflict
from tests.eventually import Looks, eventually
from tests.frontend.batch_calls import COMPLETIONS, create, jsonl, line, rows, upload
from tests.frontend.batch_calls import until as batch_until
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.frontend.inference.test_admission import assert_refused, refused_by
from tests.frontend.stored.test_batches import openai_client
from tests.frontend.tiny_model import make_bundle, make_card, register
from tests.stream_limits import fill, set_limit, usage

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("which", ["tokens", "results"])
async def test_new_requests_are_refused_and_those_accepted_end(stack: Stack, which: str) -> None:
    subjects, js = stack.cluster.subjects, stack.cluster.js
    stream = {"tokens": subjects.tokens_stream, "results": subjects.results_stream}[which]
    flag = {"tokens": "--log-max-bytes", "results": "--results-max-bytes"}[which]
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    async with running.client() as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        stack.backend.hold.clear()
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        subject = {"tokens": subjects.tokens(0, "w"), "results": subjects.done("0" * 32)}[which]
        await js.publish(subject, bytes(10_000))  # the fake backend writes none
        await fill(js, stream, 0.85)
        await eventually(lambda: room.usage(stream) > 0.8)
        assert_refused(await client.post(CHAT, json=BODY), "queue_full", "85% full", flag)
        assert refused_by(running, "queue_full") == 1
        ready = await client.get("/health/ready")
        assert ready.status_code == 503
        assert flag in ready.text
        stack.backend.hold.set()
        assert (await waiting).status_code == 200, "it was accepted before"
        await set_limit(js, stream, 1 << 30)
        await eventually(lambda: room.usage(stream) < 0.8)
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


async def test_a_full_store_of_batch_lines_refuses_batches_alone(stack: Stack) -> None:
    subjects, js = stack.cluster.subjects, stack.cluster.js
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    await js.publish(subjects.batch_line("batch_" + "0" * 32, 0), bytes(10_000))
    await fill(js, subjects.batch_stream, 0.85)
    await eventually(lambda: room.usage(subjects.batch_stream) > 0.8)
    body = {
        "input_file_id": "file-" + "0" * 32,
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    async with running.client() as client:
        answer = await client.post("/v1/batches", json=body)
        assert_refused(answer, "queue_full", "store of batch lines", "--files-max-bytes")
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


async def until_full(js: JetStream, stream: str) -> None:
    """It has no room for one more line."""
    async for _ in Looks():
        if await usage(js, stream) >= 0.95:
            return


async def start_with_a_small_batch_store(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> RunningFrontend:
    """It holds about half of what 64 lines make, which run at a time."""
    monkeypatch.setattr(driver, "_FULL_PAUSE_S", 0.5)
    js, subjects = stack.cluster.js, stack.cluster.subjects
    stack.answer(lambda request: Script(["y" * 2000]))
    await set_limit(js, subjects.requests_stream, 1000, "max_msgs")  # the stack's takes 8
    running = await stack.start_frontend(batch_max_in_flight=64, queue_max_msgs=1000)
    await set_limit(js, subjects.batch_stream, 100_000)
    return running


async def test_a_batch_that_fills_its_store_stands_still_and_can_be_cancelled(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 lines run, others come in meanwhile, and nothing of it needs a restart."""
    js, stream = stack.cluster.js, stack.cluster.subjects.batch_stream
    running = await start_with_a_small_batch_store(stack, monkeypatch)
    room = running.frontend.side.streams.room
    lines = jsonl(*(line(idx) for idx in range(64)))
    async with openai_client(running) as client, running.client() as http:
        batch = await batch_until(client, await create(client, lines), "in_progress")
        await until_full(js, stream)
        await eventually(lambda: room.usage(stream) > 0.8)
        body = {
            "input_file_id": batch.input_file_id,
            "endpoint": COMPLETIONS,
            "completion_window": "24h",
        }
        answer = await http.post("/v1/batches", json=body)
        assert_refused(answer, "queue_full", "store of batch lines", "--files-max-bytes")
        assert (await http.post(CHAT, json=BODY)).status_code == 200
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"

        await client.batches.cancel(batch.id)
        batch = await batch_until(client, batch, "cancelled")
        assert batch.request_counts is not None
        kept = await rows(client, batch.output_file_id)
        assert len(kept) == batch.request_counts.completed > 0
        left = await rows(client, batch.error_file_id)
        assert len(kept) + len(left) == 64
        assert {row["error"]["code"] for row in left} == {"batch_cancelled"}

        await eventually(lambda: room.usage(stream) < 0.1)
        again = await batch_until(client, await create(client, lines), "in_progress")
        await until_full(js, stream)
        await set_limit(js, stream, 1 << 30)
        again = await batch_until(client, again, "completed")
        found = await rows(client, again.output_file_id)
        assert [row["custom_id"] for row in found] == [f"line-{idx}" for idx in range(64)]
        assert {row["response"]["body"]["choices"][0]["text"] for row in found} == {"y" * 2000}


LONG = {"model": "tiny", "prompt": "x" * 70_000}
OBJECTS, FILES = "OBJ_jf_objects", "OBJ_jf_files"


async def test_a_full_object_store_refuses_long_prompts_alone(stack: Stack) -> None:
    """What was stored before runs to its end, and gives its room back."""
    bundle, js = make_bundle(), stack.cluster.js
    await register(stack.cluster, bundle, make_card(bundle, "tiny", max_context_len=200_000))
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    async with running.client() as client:
        stack.backend.hold.clear()
        waiting = asyncio.create_task(client.post(COMPLETIONS, json=LONG))
        await stack.until_queued(1)
        await fill(js, OBJECTS, 0.85)
        await eventually(lambda: room.usage(OBJECTS) > 0.8)
        answer = await client.post(COMPLETIONS, json=LONG)
        assert_refused(answer, "queue_full", "85% full", "--objects-max-bytes")
        assert int(answer.headers["Retry-After"]) >= 1
        assert refused_by(running, "queue_full") == 1
        assert (await client.get("/health/ready")).status_code == 200
        stack.backend.hold.set()
        assert (await waiting).status_code == 200, "it was accepted before"
        assert (await client.post(COMPLETIONS, json=LONG | {"prompt": "x"})).status_code == 200
        await eventually(lambda: room.usage(OBJECTS) < 0.8)
        assert (await client.post(COMPLETIONS, json=LONG)).status_code == 200


async def test_prompts_that_fill_the_object_store_between_two_looks(stack: Stack) -> None:
    bundle = make_bundle()
    await register(stack.cluster, bundle, make_card(bundle, "tiny", max_context_len=200_000))
    running = await stack.start_frontend()
    running.frontend.side.streams.room._look = _sees_nothing  # type: ignore[method-assign]
    await fill(stack.cluster.js, OBJECTS, 1.0)
    async with running.client() as client:
        answer = await client.post(COMPLETIONS, json=LONG)
        assert_refused(answer, "queue_full", "long prompts and images", "--objects-max-bytes")
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await client.post(COMPLETIONS, json=LONG | {"prompt": "x"})).status_code == 200
        await stack.until_queued(0)


async def _sees_nothing(stream: str) -> None:
    pass


async def test_a_full_store_of_keys_refuses_new_keys_alone(stack: Stack) -> None:
    js, bucket = stack.cluster.js, f"KV_{stack.cluster.subjects.idempotency_bucket}"
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    known, new = {"Idempotency-Key": "known"}, {"Idempotency-Key": "new"}
    async with running.client() as client:
        first = await client.post(CHAT, json=BODY, headers=known)
        assert first.status_code == 200
        await fill(js, bucket, 1.0)  # before it is seen
        answer = await client.post(CHAT, json=BODY, headers=new)
        assert_refused(answer, "queue_full", "idempotency keys", "--keys-max-bytes")
        await eventually(lambda: room.usage(bucket) > 0.8)
        answer = await client.post(CHAT, json=BODY, headers=new)
        assert_refused(answer, "queue_full", "100% full", "--keys-max-bytes")
        again = await client.post(CHAT, json=BODY, headers=known)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


async def test_a_nearly_full_store_of_readers_lets_what_runs_be_cancelled(stack: Stack) -> None:
    """Whoever leaves a request writes there."""
    js, bucket = stack.cluster.js, f"KV_{stack.cluster.subjects.attached_bucket}"
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    async with running.client() as client:
        stack.backend.hold.clear()
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await stack.until_queued(1)
        await js.publish(f"$KV.{stack.cluster.subjects.attached_bucket}.former", bytes(10_000))
        await fill(js, bucket, 0.85)
        await eventually(lambda: room.usage(bucket) > 0.8)
        answer = await client.post(CHAT, json=BODY)
        assert_refused(answer, "queue_full", "85% full", "--keys-max-bytes")
        ready = await client.get("/health/ready")
        assert ready.status_code == 503
        assert "--keys-max-bytes" in ready.text
        waiting.cancel()
        await stack.until_queued(0)


@pytest.mark.parametrize("stream", [FILES, "KV_jf_files", "KV_jf_batches"])
async def test_full_stores_of_files_and_batches_refuse_these_alone(
    stack: Stack, stream: str
) -> None:
    """Outputs of batches that have been accepted have the rest."""
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    async with openai_client(running) as client, running.client() as http:
        batch = await batch_until(client, await create(client, jsonl(line(0))), "completed")
        await fill(stack.cluster.js, stream, 0.85)
        await eventually(lambda: room.usage(stream) > 0.8)
        flag = "--files-max-bytes" if stream == FILES else "--keys-max-bytes"
        body = {
            "input_file_id": batch.input_file_id,
            "endpoint": COMPLETIONS,
            "completion_window": "24h",
        }
        answer = await http.post("/v1/batches", json=body)
        assert_refused(answer, "queue_full", "85% full", flag)
        if stream != "KV_jf_batches":
            answer = await http.post(
                "/v1/files", files={"file": ("in.jsonl", b"{}")}, data={"purpose": "batch"}
            )
            assert_refused(answer, "queue_full", "85% full", flag)
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await http.post(CHAT, json=BODY)).status_code == 200
        assert (await http.get("/health/ready")).status_code == 200


async def test_a_file_can_be_deleted_where_not_a_byte_is_left(stack: Stack) -> None:
    running = await stack.start_frontend()
    room = running.frontend.side.streams.room
    async with openai_client(running) as client:
        kept, unwanted = await upload(client, b"1" * 1000), await upload(client, b"2" * 100_000)
        await fill(stack.cluster.js, FILES, 1.0)
        await eventually(lambda: room.usage(FILES) > 0.8)
        await client.files.delete(unwanted)
        assert [file.id async for file in client.files.list()] == [kept]
        await eventually(lambda: room.usage(FILES) < 0.8)
        await upload(client, b"3" * 1000)


async def _expire(running: RunningFrontend, batch_id: str) -> None:
    """Its time is over now."""
    store = running.frontend.side.stored.batch_keeper._store
    while True:
        try:
            await store.change(await store.get(batch_id, ""), expires=time.time())
        except CasConflict:
            continue  # its driver tells progress
        return


async def test_a_batch_whose_time_is_over_ends_though_its_store_is_full(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines that have found no room are told as expired, all others are kept."""
    js, stream = stack.cluster.js, stack.cluster.subjects.batch_stream
    running = await start_with_a_small_batch_store(stack, monkeypatch)
    room = running.frontend.side.streams.room
    lines = jsonl(*(line(idx) for idx in range(64)))
    async with openai_client(running) as client:
        batch = await create(client, lines)
        await until_full(js, stream)
        batch = await batch_until(client, batch, "in_progress")
        await _expire(running, batch.id)
        batch = await batch_until(client, batch, "expired")
        assert batch.request_counts is not None
        kept = await rows(client, batch.output_file_id)
        assert len(kept) == batch.request_counts.completed > 0
        left = await rows(client, batch.error_file_id)
        assert len(kept) + len(left) == 64
        assert {row["error"]["code"] for row in left} == {"batch_expired"}
        await eventually(lambda: room.usage(stream) < 0.1)
        await eventually(lambda: not running.frontend.side.stored.batch_keeper._driving)
        assert await stack.num_queued() == 0
