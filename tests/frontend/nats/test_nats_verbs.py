"""Responses, files and batches over NATS: the same answers and errors as over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import IO, Any

import pytest

from frontend.jobs.job import Caller
from frontend.stored.files import file_transfers as transfers
from frontend.stored.files.file_answer import File
from frontend.stored.files.file_transfers import Transfers
from frontend.stored.files.files import Files
from jetflock import Client
from shared.errors import RequestError
from tests.eventually import Looks, eventually
from tests.frontend.batch_calls import jsonl, line
from tests.frontend.conftest import Stack
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.response_events import check_events, check_response, events_of

BODY: dict[str, Any] = {"model": "tiny", "input": "Say hello"}


async def told(stack: Stack, subject: str, body: Any) -> Any:
    return json.loads((await ask(stack, subject, body)).data)


@pytest.mark.integration
async def test_a_response_lives_on(stack: Stack) -> None:
    http = (await stack.start_frontend()).client()
    whole = await told(stack, "responses", BODY)
    check_response(whole)
    assert whole["status"] == "completed"
    ref = {"id": whole["id"]}
    assert await told(stack, "responses.get", ref) == whole
    url = f"/v1/responses/{whole['id']}"
    items = await told(stack, "responses.input_items", {**ref, "limit": 5, "order": "asc"})
    assert items == (await http.get(f"{url}/input_items?limit=5&order=asc")).json()

    streamed = await ask_stream(stack, "responses.get", {**ref, "stream": True})
    events = [json.loads(message.data) for message in streamed if message.data]
    check_events(events)
    assert all("Jetflock-Event-Id" not in (message.headers or {}) for message in streamed)
    async with http.stream("GET", f"{url}?stream=true") as response:
        assert await events_of(response) == events
    behind = await ask_stream(stack, "responses.get", {**ref, "stream": True, "starting_after": 3})
    assert [json.loads(message.data) for message in behind if message.data] == events[4:]

    assert (await told(stack, "responses.delete", ref))["deleted"] is True
    assert (await told(stack, "responses.get", ref))["error"]["code"] == "response_not_found"
    await http.aclose()


@pytest.mark.integration
async def test_a_response_in_the_background_is_cancelled(stack: Stack) -> None:
    stack.say("a", "b", never_finish=True)
    await stack.start_frontend()
    body = {**BODY, "background": True}
    queued = await told(stack, "responses", body)
    check_response(queued)
    assert queued["status"] in ("queued", "in_progress")
    stream = asyncio.create_task(ask_stream(stack, "responses", {**body, "stream": True}))
    await eventually(lambda: len(stack.backend.runs) == 2)
    for rid in list(stack.backend.runs):
        cancelled = await told(stack, "responses.cancel", {"id": f"resp_{rid}"})
        assert (cancelled["id"], cancelled["status"]) == (f"resp_{rid}", "cancelled")
    events = [json.loads(message.data) for message in await stream if message.data]
    assert events[-1]["response"]["status"] == "cancelled"


@pytest.mark.integration
async def test_a_batch_by_the_python_client(stack: Stack, tmp_path: Path) -> None:
    await stack.start_frontend(queue_max_msgs=1000)
    lines = [line(i, user="x" * 400_000) for i in range(4)]  # more than one message takes
    (tmp_path / "in.jsonl").write_bytes(jsonl(*lines))
    async with Client(stack.server.url) as client:
        file = await client.upload_async(tmp_path / "in.jsonl")
        assert (file["filename"], file["purpose"]) == ("in.jsonl", "batch")
        assert file["bytes"] > 1_600_000
        await client.download_async(file["id"], tmp_path / "again.jsonl")
        assert (tmp_path / "again.jsonl").read_bytes() == jsonl(*lines)

        wanted = {"endpoint": "/v1/completions", "completion_window": "1h"}
        batch = await client.ask_async("batches", {"input_file_id": file["id"], **wanted})
        async for _ in Looks(60):
            batch = await client.ask_async("batches.get", {"id": batch["id"]})
            if batch["status"] == "completed":
                break
        await client.download_async(batch["output_file_id"], tmp_path / "out.jsonl")
        rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [row["custom_id"] for row in rows] == [f"line-{i}" for i in range(4)]

        assert (await client.ask_async("batches.list", {"limit": 1}))["data"] == [batch]
        assert (await client.ask_async("files.get", {"id": file["id"]})) == file
        assert (await client.ask_async("files.delete", {"id": file["id"]}))["deleted"]
        listed = await client.ask_async("files.list", {"purpose": "batch_output"})
        assert [item["id"] for item in listed["data"]] == [batch["output_file_id"]]
        assert (await client.stats_async())["aggregate"]["total_running_reqs"] == 0


@pytest.mark.integration
async def test_errors_are_those_of_http(stack: Stack) -> None:
    http = (await stack.start_frontend(max_file_bytes=1000)).client()
    gone, batch = "resp_" + "0" * 32, {"endpoint": "/v1/completions", "completion_window": "1h"}
    ended = (await told(stack, "responses", BODY))["id"]
    for subject, body, method, url in (
        ("responses", {"model": "tiny"}, "POST", "/v1/responses"),
        ("responses", {**BODY, "model": "none"}, "POST", "/v1/responses"),
        ("responses.get", {"id": gone}, "GET", f"/v1/responses/{gone}"),
        ("responses.get", {"id": gone, "stream": True}, "GET", f"/v1/responses/{gone}?stream=true"),
        ("responses.get", {"id": ended, "starting_after": 1}, "GET",
         f"/v1/responses/{ended}?starting_after=1"),
        ("responses.cancel", {"id": ended}, "POST", f"/v1/responses/{ended}/cancel"),
        ("responses.input_items", {"id": ended, "order": "x"}, "GET",
         f"/v1/responses/{ended}/input_items?order=x"),
        ("batches", {**batch, "input_file_id": "file-x"}, "POST", "/v1/batches"),
        ("batches", {"endpoint": "/v1/x"}, "POST", "/v1/batches"),
        ("batches.get", {"id": "batch_x"}, "GET", "/v1/batches/batch_x"),
        ("batches.cancel", {"id": "batch_x"}, "POST", "/v1/batches/batch_x/cancel"),
        ("batches.list", {"limit": 0}, "GET", "/v1/batches?limit=0"),
        ("files.get", {"id": "file-x"}, "GET", "/v1/files/file-x"),
        ("files.delete", {"id": "file-x"}, "DELETE", "/v1/files/file-x"),
        ("files.download", {"id": "file-x"}, "GET", "/v1/files/file-x/content"),
    ):  # fmt: skip
        answer = await ask(stack, subject, body)
        expected = await http.request(method, url, json=body if method == "POST" else None)
        assert json.loads(answer.data) == expected.json(), subject
        assert (answer.headers or {})["Nats-Service-Error-Code"] == str(expected.status_code)
    for subject, body, param in (
        ("responses.get", {}, "id"),
        ("batches.get", {"id": 5}, "id"),
        ("responses.get", {"id": ended, "stream": True, "starting_after": -1}, "starting_after"),
        ("files.upload", {"purpose": "fine-tune"}, "purpose"),
    ):
        error = (await told(stack, subject, body))["error"]
        assert error["param"] == param, error
    await http.aclose()


class KeptFiles(Files):
    """Keeps what is added in a list."""

    def __init__(self) -> None:
        self.max_file_bytes = 10
        self.added: list[bytes] = []

    async def add(self, content: IO[bytes], num_bytes: int, *_: Any) -> File:
        self.added.append(content.read())
        assert len(self.added[-1]) == num_bytes
        return File(
            id=f"file-{len(self.added)}",
            object="file",
            bytes=num_bytes,
            created_at=1,
            expires_at=2,
            filename="in.jsonl",
            purpose="batch",
            status="processed",
            status_details=None,
        )


async def test_parts_of_an_upload_may_come_twice() -> None:
    files = KeptFiles()
    uploads = Transfers(files, 4)
    transfer = await uploads.upload({"purpose": "batch"}, Caller())
    for offset, data, num_bytes in ((0, b"abcd", 4), (4, b"ef", 6), (0, b"abcd", 6)):
        told = json.loads(await uploads.part(transfer.name, "", str(offset), data))
        assert told == {"bytes": num_bytes}
    for wrong, data in (("7", b"x"), ("5", b""), ("-1", b"x"), ("", b"x"), ("9", b"xx")):
        with pytest.raises(RequestError):
            await uploads.part(transfer.name, "", wrong, data)
    for _ in range(2):
        assert json.loads(await uploads.part(transfer.name, "", "6", b""))["id"] == "file-1"
    assert files.added == [b"abcdef"]
    uploads.close()


async def test_transfers_that_nobody_goes_on_with_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "IDLE_S", 0.0)
    monkeypatch.setattr(transfers, "MAX_OPEN", 1)
    uploads = Transfers(KeptFiles(), 4)
    first = await uploads.upload({"purpose": "batch"}, Caller())
    with pytest.raises(RequestError, match="1 transfers"):
        await uploads.upload({"purpose": "batch"}, Caller())
    while not first.content.closed:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(RequestError, match="No such transfer") as caught:
        await uploads.part(first.name, "", "0", b"x")
    assert (caught.value.status_code, caught.value.code) == (404, "transfer_not_found")
    uploads.close()
