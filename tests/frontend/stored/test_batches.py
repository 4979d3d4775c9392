"""Files and batches as OpenAI's own client drives them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from frontend.stored.batches.batch_driver import BatchDriver
from frontend.stored.batches.batch_record import BatchRecord, BatchStatus, new_batch_id
from frontend.stored.batches.batch_results import LineResult
from frontend.stored.batches.batch_store import StoredBatch
from frontend.stored.files.file_record import new_file_id
from frontend.tenants.tenant import EVERYBODY
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.eventually import Looks, eventually, eventually_async
from tests.forked_program import run_program
from tests.frontend.batch_calls import COMPLETIONS, create, jsonl, line, rows, until, upload
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"


def idx_of(request: GenerateRequest) -> int:
    """Of the line that it was made from: one token begins the prompt."""
    return len(unpack_token_ids(request.prompt_ids)) - 2


@pytest.fixture
async def frontend(stack: Stack) -> RunningFrontend:
    return await stack.start_frontend(batch_max_in_flight=4, queue_max_msgs=1000)


@pytest.fixture
async def client(frontend: RunningFrontend) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(frontend) as client:
        yield client


def openai_client(frontend: RunningFrontend, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key=key, max_retries=0, timeout=20)


async def test_a_file_comes_and_goes(client: AsyncOpenAI) -> None:
    content = b"x" * 300_000 + b"\n\xff"
    file = await client.files.create(file=("a b.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (300_002, "a b.jsonl", "batch")
    assert file.id.startswith("file-")
    assert file.expires_at is not None
    assert (await client.files.retrieve(file.id)) == file
    assert (await client.files.content(file.id)).content == content
    other = await upload(client, b"{}", expires_after={"anchor": "created_at", "seconds": 3600})
    listed = [f.id async for f in client.files.list(limit=1)]
    assert listed == [other, file.id]
    assert (await client.files.delete(file.id)).deleted
    assert [f.id async for f in client.files.list()] == [other]
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await call(file.id)
        assert caught.value.code == "file_not_found"


@pytest.mark.parametrize(
    ("content", "options", "status", "param"),
    [
        (b"{}", {"purpose": "fine-tune"}, 400, "purpose"),
        (b"", {"purpose": "batch"}, 400, "file"),
        (b"x" * 2000, {"purpose": "batch"}, 413, None),
        (b"x" * 200_000, {"purpose": "batch"}, 413, None),
        (
            b"{}",
            {"purpose": "batch", "expires_after": {"anchor": "created_at", "seconds": 5}},
            400,
            "expires_after[seconds]",
        ),
    ],
)
async def test_files_that_are_refused(
    stack: Stack, content: bytes, options: Any, status: int, param: str | None
) -> None:
    running = await stack.start_frontend(max_file_bytes=1000)
    async with openai_client(running) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.files.create(file=("in.jsonl", content), **options)
        assert (caught.value.status_code, caught.value.param) == (status, param)
        assert [f async for f in client.files.list()] == []


async def test_a_full_store_says_so(stack: Stack) -> None:
    await stack.cluster.js.api(
        "STREAM.UPDATE.OBJ_jf_files",
        (await stack.cluster.js.api("STREAM.INFO.OBJ_jf_files"))["config"] | {"max_bytes": 100_000},
    )
    running = await stack.start_frontend()
    async with openai_client(running) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await upload(client, b"x" * 200_000)
        assert (caught.value.status_code, caught.value.code) == (413, "storage_full")
        await upload(client, b"x" * 1000)


async def test_a_batch_from_upload_to_download(client: AsyncOpenAI, stack: Stack) -> None:
    stack.answer(lambda request: Script([f"<{idx_of(request)}>"]))
    batch = await create(client, jsonl(*(line(i) for i in range(30)), ""))
    assert batch.status == "validating"
    assert batch.metadata == {"job": "nightly"}
    batch = await until(client, batch, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
    assert batch.error_file_id is None
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    results = await rows(client, batch.output_file_id)
    assert [row["custom_id"] for row in results] == [f"line-{i}" for i in range(30)]
    for i, row in enumerate(results):
        assert (row["error"], row["response"]["status_code"]) == (None, 200)
        assert row["response"]["body"]["choices"][0]["text"] == f"<{i}>"
        assert row["response"]["body"]["id"] == f"cmpl-{row['response']['request_id']}"
    assert len({row["id"] for row in results}) == 30
    runs = stack.backend.runs.values()
    assert len(runs) == 30
    assert batch.usage is not None
    usages = [row["response"]["body"]["usage"] for row in results]
    for of_batch, name in (
        (batch.usage.input_tokens, "prompt"),
        (batch.usage.output_tokens, "completion"),
    ):
        assert of_batch == sum(usage[f"{name}_tokens"] for usage in usages) > 0
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
    assert {run.reply.job_class for run in runs} == {"batch"}
    assert {run.request.priority for run in runs} == {100}
    assert [b.id async for b in client.batches.list()] == [batch.id]
    file = await client.files.retrieve(batch.output_file_id or "")
    assert file.purpose == "batch_output"
    results_left = stack.cluster.js.direct_scan("jf_BATCH", "jf.batch.>")
    assert [message async for message in results_left] == []


async def test_chat_and_answers_that_fill_messages(client: AsyncOpenAI, stack: Stack) -> None:
    stack.say("y" * 200_000)
    body = {"prompt": None, "messages": [{"role": "user", "content": "Hi"}]}
    batch = await create(client, jsonl(line(0, CHAT, **body)), CHAT)
    batch = await until(client, batch, "completed")
    (row,) = await rows(client, batch.output_file_id)
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "y" * 200_000
    names = [f async for f in client.files.list(purpose="batch_output")]
    assert len(names) == 1


async def test_responses(client: AsyncOpenAI) -> None:
    asked = line(0, "/v1/responses", prompt=None, input="Hi")
    batch = await until(client, await create(client, jsonl(asked), "/v1/responses"), "completed")
    (row,) = await rows(client, batch.output_file_id)
    body = row["response"]["body"]
    assert (body["object"], body["status"]) == ("response", "completed")
    assert batch.usage is not None
    assert batch.usage.output_tokens == body["usage"]["output_tokens"] > 0
    assert (await client.responses.retrieve(body["id"])).output_text == "Hello, world!"


async def test_lines_that_fail_are_told_in_the_error_file(
    client: AsyncOpenAI, stack: Stack
) -> None:
    def script(request: GenerateRequest) -> Script:
        if idx_of(request) == 2:
            return Script(["Hel"], Finish(FinishReason.ERROR, message="out of pages"))
        return Script(["ok"])

    stack.answer(script)
    batch = await create(client, jsonl(line(0), line(1, temperature=9), line(2), line(3)))
    batch = await until(client, batch, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 4, "completed": 2, "failed": 2}
    good = await rows(client, batch.output_file_id)
    assert [row["custom_id"] for row in good] == ["line-0", "line-3"]
    bad = await rows(client, batch.error_file_id)
    assert [row["custom_id"] for row in bad] == ["line-1", "line-2"]
    assert [row["response"]["status_code"] for row in bad] == [400, 500]
    assert bad[0]["response"]["body"]["error"]["param"] == "temperature"
    assert bad[1]["response"]["body"]["error"]["message"] == "out of pages"


async def test_an_input_file_with_every_mistake(client: AsyncOpenAI, stack: Stack) -> None:
    batch = await create(
        client,
        jsonl(
            "{not json",
            "[]",
            line(2) | {"custom_id": None},
            line(3),
            line(3),
            line(5) | {"method": "GET"},
            line(6, CHAT),
            line(7) | {"body": "x"},
            line(8, model=None),
            line(9, stream=True),
            line(10) | {"url": json.loads("[" * 200 + "]" * 200)},
        ),
    )
    batch = await until(client, batch, "failed")
    assert batch.errors is not None
    assert [(e.line, e.code, e.param) for e in batch.errors.data or []] == [
        (1, "invalid_json_line", None),
        (2, "invalid_json_line", None),
        (3, "missing_required_parameter", "custom_id"),
        (5, "duplicate_custom_id", "custom_id"),
        (6, "invalid_method", "method"),
        (7, "mismatched_url", "url"),
        (8, "missing_required_parameter", "body"),
        (9, "missing_required_parameter", "body.model"),
        (10, "unsupported_parameter", "body.stream"),
        (11, "invalid_json_line", None),
    ]
    assert stack.backend.runs == {}
    assert batch.failed_at is not None


async def test_a_line_for_an_unknown_model_fails_alone(client: AsyncOpenAI) -> None:
    batch = await create(client, jsonl(line(0), line(1, model="nobody"), line(2)))
    batch = await until(client, batch, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
    [row] = await rows(client, batch.error_file_id)
    assert (row["custom_id"], row["response"]["status_code"]) == ("line-1", 404)
    assert row["response"]["body"]["error"]["code"] == "model_not_found"


async def test_batches_that_are_refused(client: AsyncOpenAI) -> None:
    file_id = await upload(client, jsonl(line(0)))
    good = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    for change, param in (
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "9999d"}, "completion_window"),
        ({"metadata": {"a": "x" * 600}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.batches.create(**(good | change))
        assert caught.value.param == param
    for unknown in ("file-" + "0" * 32, "../*"):
        with pytest.raises(openai.NotFoundError):
            await client.batches.create(**(good | {"input_file_id": unknown}))  # type: ignore[arg-type]
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_" + "0" * 32)


async def test_a_cancelled_batch_keeps_what_was_done(client: AsyncOpenAI, stack: Stack) -> None:
    def script(request: GenerateRequest) -> Script:
        return Script(["done"]) if idx_of(request) == 0 else Script(["go", "on"], never_finish=True)

    stack.answer(script)
    batch = await create(client, jsonl(*(line(i) for i in range(8))))
    async for _ in Looks():
        batch = await client.batches.retrieve(batch.id)
        if batch.request_counts is not None and batch.request_counts.completed:
            break
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    batch = await until(client, batch, "cancelled")
    assert batch.cancelled_at is not None
    assert [row["custom_id"] for row in await rows(client, batch.output_file_id)] == ["line-0"]
    rest = await rows(client, batch.error_file_id)
    assert [row["custom_id"] for row in rest] == [f"line-{i}" for i in range(1, 8)]
    assert {row["error"]["code"] for row in rest} == {"batch_cancelled"}
    assert (await client.batches.cancel(batch.id)).status == "cancelled"
    started = {run.request.rid for run in stack.backend.runs.values() if run.text != "done"}
    await eventually(lambda: started <= set(stack.backend.cancelled))  # what ran was ended
    assert len(stack.backend.runs) < 8


async def test_a_batch_expires(client: AsyncOpenAI, stack: Stack) -> None:
    stack.say("for", "ever", never_finish=True)
    batch = await create(client, jsonl(line(0), line(1)), window="2s")
    batch = await until(client, batch, "expired")
    assert (batch.output_file_id, batch.expired_at is None) == (None, False)
    rest = await rows(client, batch.error_file_id)
    assert {row["error"]["code"] for row in rest} == {"batch_expired"}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.batches.cancel(batch.id)
    assert caught.value.code == "batch_not_cancellable"


async def test_a_batch_never_has_more_in_the_queue_than_it_may(
    client: AsyncOpenAI, stack: Stack
) -> None:
    gate = asyncio.Event()
    stack.answer(lambda request: Script(["a", "b"], gate=gate))
    batch = await create(client, jsonl(*(line(i) for i in range(20))))
    other = await create(client, jsonl(*(line(i) for i in range(20))))
    await eventually(lambda: len(stack.backend.runs) == 4)
    assert await stack.num_queued() <= 6  # 4; for a moment more while the second one comes in
    gate.set()
    await until(client, batch, "completed")
    await until(client, other, "completed")


async def test_another_key_sees_nothing(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("one", "two"), queue_max_msgs=1000)
    async with openai_client(running, "one") as mine, openai_client(running, "two") as theirs:
        batch = await until(mine, await create(mine, jsonl(line(0))), "completed")
        assert [b async for b in theirs.batches.list()] == []
        assert [f async for f in theirs.files.list()] == []
        file_id = batch.input_file_id
        for call in (
            theirs.batches.retrieve(batch.id),
            theirs.batches.cancel(batch.id),
            theirs.files.retrieve(file_id),
            theirs.files.content(batch.output_file_id or ""),
            theirs.files.delete(file_id),
            theirs.batches.create(
                input_file_id=file_id, endpoint=COMPLETIONS, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert [b.id async for b in mine.batches.list()] == [batch.id]


async def test_a_frontend_that_stops_leaves_its_batch_to_another(stack: Stack) -> None:
    gate = asyncio.Event()
    stack.answer(lambda request: Script(["a", "b"], gate=gate))
    options: dict[str, Any] = {"queue_max_msgs": 1000, "batch_max_in_flight": 4}
    first = await stack.start_frontend(**options)
    async with openai_client(first) as client:
        batch = await create(client, jsonl(*(line(i) for i in range(6))))
        await eventually(lambda: len(stack.backend.runs) == 4)
    second = await stack.start_frontend(**options)
    first.frontend.shutdown.ask()
    await first.task
    gate.set()
    async with openai_client(second) as client:
        batch = await until(client, batch, "completed")
        assert [row["custom_id"] for row in await rows(client, batch.output_file_id)] == [
            f"line-{i}" for i in range(6)
        ]
    assert len(stack.backend.runs) == 6  # none ran twice


async def test_no_driver_is_replaced_while_heartbeats_cannot_be_stored(stack: Stack) -> None:
    """Servers that choose a leader take longer than heartbeats live: also those of the living."""
    driver = await stack.start_frontend(queue_max_msgs=1000)
    other = await stack.start_frontend(queue_max_msgs=1000)
    stack.answer(lambda request: Script(["a"], gate=asyncio.Event()))  # it never ends
    async with openai_client(driver) as client:
        await create(client, jsonl(line(0)))
    store = other.frontend.side.stored.batch_store

    async def driver_of_batch() -> str:
        (batch,) = await store.active()
        return batch.driver

    async def is_driven() -> bool:
        return await driver_of_batch() == driver.frontend_id

    await eventually_async(is_driven)
    await driver.die()
    await stack.cluster.bucket(stack.cluster.subjects.roles_bucket).delete(driver.frontend_id)
    for _ in range(10):  # a dead driver is replaced at the third look, one a second
        other.frontend.side.streams.heartbeat.writability.note(is_written=False)
        await time_to_err(0.5)
        assert await driver_of_batch() == driver.frontend_id

    async def is_replaced() -> bool:
        return await driver_of_batch() == other.frontend_id

    await eventually_async(is_replaced, 20)


async def test_a_driver_that_is_late_deletes_nothing_that_is_published(
    client: AsyncOpenAI, frontend: RunningFrontend
) -> None:
    """It has read the record just before another one has written it for the last time."""
    batch = await until(client, await create(client, jsonl(line(0), line(1))), "completed")
    assert batch.output_file_id is not None
    keeper = frontend.frontend.side.stored.batch_keeper
    stored = await keeper._store.get(batch.id, "")
    before = msgspec.structs.replace(
        stored.record,
        status=BatchStatus.FINALIZING,
        completed_at=None,
        output_file_id=None,
        files=(batch.output_file_id, new_file_id()),
    )
    late = BatchDriver(keeper._parts, StoredBatch(before, stored.revision - 1), EVERYBODY)
    await late.run()
    assert await client.batches.retrieve(batch.id) == batch
    assert len(await rows(client, batch.output_file_id)) == 2


async def test_what_a_dead_driver_left_is_deleted(
    client: AsyncOpenAI, frontend: RunningFrontend
) -> None:
    """Also by the driver after the next, when that one dies as well before it comes to it."""
    batch = await until(client, await create(client, jsonl(line(0))), "completed")
    keeper = frontend.frontend.side.stored.batch_keeper
    left = [await upload(client, b"x") for _ in range(4)]
    stored = await keeper._store.get(batch.id, "")
    died = await keeper._store.change(
        stored, status=BatchStatus.FINALIZING, output_file_id=None, files=tuple(left)
    )
    await BatchDriver(keeper._parts, died, EVERYBODY).run()
    assert (await client.batches.retrieve(batch.id)).status == "expired"  # its lines were cleared
    files = {file.id async for file in client.files.list()}
    assert files.isdisjoint(left)


async def test_a_second_result_of_a_line_changes_nothing_of_the_first(
    frontend: RunningFrontend,
) -> None:
    """Large ones lie in the object store."""
    results = frontend.frontend.side.stored.batch_keeper._parts.results
    first, second = (LineResult(0, is_error=False, text=fill * 100_000) for fill in (b"1", b"2"))
    await results.put("batch_1", first)
    await results.put("batch_1", second)
    (kept,) = [result async for result in results.all("batch_1")]
    assert await results.text(kept) == first.text
    await results.clear("batch_1")


async def test_a_mark_that_was_cleared_away_while_its_record_was_written_comes_back(
    frontend: RunningFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = frontend.frontend.side.stored.batch_keeper._store
    put_if = store._bucket.put_if
    record = BatchRecord(
        id=new_batch_id(),
        owner="somebody",
        tenant="nobody",
        endpoint=COMPLETIONS,
        input_file_id="file-1",
        completion_window="24h",
        created=0.0,
        expires=time.time() + 60,
    )

    async def slow_put_if(key: str, value: bytes, revision: int) -> int:
        if key.startswith("of."):
            await store.forget(record.id)
        return await put_if(key, value, revision)

    monkeypatch.setattr(store._bucket, "put_if", slow_put_if)
    await store.create(record)
    assert record.id in {batch.batch_id for batch in await store.active()}


async def jetflock_batch(*words: str) -> tuple[int | None, str, str]:
    done = await asyncio.to_thread(run_program, "jetflock", "batch", *words)
    return done.returncode, done.stdout, done.stderr


async def test_a_batch_from_the_shell(stack: Stack, tmp_path: Path) -> None:
    running = await stack.start_frontend(api_key=("secret",))
    stack.answer(lambda request: Script([f"<{idx_of(request)}>"]))
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*(line(i) for i in range(5)), line(5, top_p=7)))
    where = ("--url", running.url, "--api-key", "secret")
    status, printed, told = await jetflock_batch(
        "run", str(source), "--output", str(output), *where
    )
    assert status == 1, told
    assert "5 of 6 requests were answered" in told
    batch = json.loads(printed)
    assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
    good = [json.loads(text) for text in output.read_text().splitlines()]
    texts = [row["response"]["body"]["choices"][0]["text"] for row in good]
    assert texts == [f"<{i}>" for i in range(5)]
    (bad,) = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    assert json.loads(bad)["custom_id"] == "line-5"
    status, printed, told = await jetflock_batch("list", *where)
    assert (status, printed.split()[:2]) == (0, [batch["id"], "completed"])


async def test_the_shell_says_what_is_wrong(stack: Stack, tmp_path: Path) -> None:
    running = await stack.start_frontend()
    source = tmp_path / "in.jsonl"
    source.write_text("hello")
    status, _, told = await jetflock_batch("run", str(source), "--url", running.url)
    assert (status, "is no request of a batch" in told) == (2, True), told
    source.write_bytes(jsonl(line(0), line(0)))
    status, _, told = await jetflock_batch("run", str(source), "--url", running.url)
    assert (status, "line 2: The custom_id 'line-0' is used twice" in told) == (1, True), told
