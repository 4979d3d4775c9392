"""64 clients fill what an accepted request writes to: all end exactly, others are told to wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from detok.replay_service import read_done
from shared.broker.piece_chain import PieceChain
from shared.protocol.finish import FinishReason
from shared.storage.stream_room import ADMISSION_MARK, ENGINE_MARK
from tests.e2e.role_stack import MODEL_NAME, RoleStack, scripted
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks, eventually_async
from tests.stream_limits import fill, set_limit, usage

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 64
NUM_TOKENS = 250
NUM_SEEDS = 4
LONG = 1900
FULL_ENOUGH = 0.72  # where it stands when the 64 begin
NEARLY_FULL = 0.89
RESERVE_BYTES = 250_000  # above the second mark: what is under way when it is passed
ROOMY = 1 << 30


@asynccontextmanager
async def ready_stack(folder: Path) -> AsyncIterator[tuple[RoleStack, httpx.AsyncClient]]:
    limits = httpx.Limits(max_connections=200)
    async with RoleStack(folder) as stack:
        stack.start_worker(*scripted(0.01), "--max-running", "128")
        await stack.wait_ready(1)
        async with httpx.AsyncClient(base_url=stack.url(), timeout=60, limits=limits) as client:
            yield stack, client


async def expected_texts(stack: RoleStack) -> list[str]:
    seeds = range(NUM_SEEDS)
    bodies = [run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS) for seed in seeds]
    return [stream.text for stream in await asyncio.gather(*bodies)]


class Clients:
    """Streams that are read to their end; the last two are cancelled, or have a deadline."""

    def __init__(self, stack: RoleStack, client: httpx.AsyncClient, lengths: list[int]) -> None:
        self.stack = stack
        self.client = client
        self.lengths = lengths
        self.streams = [Stream() for _ in lengths]
        self.cancelled, self.overdue = Stream(), Stream()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for idx, (stream, length) in enumerate(zip(self.streams, self.lengths, strict=True)):
            self.tasks.append(self._begin(stream, idx % NUM_SEEDS, length))
        self.reading = self._begin(self.cancelled, 0, LONG)
        self.overrun = self._begin(self.overdue, 0, LONG, {"X-Request-Timeout": "4"})
        for stream in (*self.streams, self.cancelled, self.overdue):
            await stream.wait_for_tokens(1)

    def _begin(
        self, stream: Stream, seed: int, length: int, headers: dict[str, str] | None = None
    ) -> asyncio.Task[None]:
        async def read() -> None:
            body = completion_body(seed=seed, max_tokens=length)
            async with self.client.stream(
                "POST", "/v1/completions", json=body, headers=headers
            ) as response:
                await stream.read(response)

        return asyncio.create_task(read())

    async def cancel(self) -> None:
        """Its client goes; its end and its result are stored all the same."""
        rid = self.cancelled.rid
        self.reading.cancel()
        done = await eventually_async(lambda: read_done(self.stack.cluster, rid), 30)
        assert done.finish.reason is FinishReason.CANCEL

    async def until_overdue(self) -> None:
        await asyncio.wait_for(self.overrun, 30)
        assert self.overdue.error is not None
        assert self.overdue.error["code"] == "deadline_exceeded"

    async def until_ended(self, texts: list[str]) -> None:
        await asyncio.wait_for(asyncio.gather(*self.tasks), 60)
        for idx, (stream, length) in enumerate(zip(self.streams, self.lengths, strict=True)):
            assert (stream.is_done, stream.error) == (True, None)
            assert stream.finish_reason == "length"
            text = texts[idx % NUM_SEEDS]
            if length >= NUM_TOKENS:
                assert stream.text.startswith(text)
                assert (stream.text == text) is (length == NUM_TOKENS)
            else:
                assert text.startswith(stream.text)
                assert stream.text


async def until_usage(stack: RoleStack, stream: str, mark: float) -> None:
    async for _ in Looks(60, longest_pause_s=0.02):
        if await usage(stack.cluster.js, stream) >= mark:
            return


async def refusal(client: httpx.AsyncClient, status: int, **request: Any) -> httpx.Response:
    """What a new request is told, once the frontend has seen how full it is: one that is accepted
    before that may wait for engines that stand still.
    """
    async for _ in Looks(60):
        with contextlib.suppress(httpx.ReadTimeout):
            answer = await client.post(**request, timeout=3.0)
            if answer.status_code == status:
                break
    assert int(answer.headers["Retry-After"]) >= 1
    return answer


async def until_normal(stack: RoleStack, client: httpx.AsyncClient) -> None:
    async for _ in Looks():
        if (await client.get("/health/ready")).status_code == 200:
            break
    await run_stream(stack.url(), max_tokens=5)


async def check_full(stream: str, flag: str, clients: Clients, texts: list[str]) -> None:
    stack, client = clients.stack, clients.client
    js = stack.cluster.js
    await until_usage(stack, stream, ADMISSION_MARK)
    body = completion_body(max_tokens=5, stream=False)
    answer = await refusal(client, 429, url="/v1/completions", json=body)
    assert flag in answer.json()["error"]["message"]
    ready = await client.get("/health/ready")
    assert ready.status_code == 503
    assert flag in ready.text
    await until_usage(stack, stream, ENGINE_MARK)
    await clients.cancel()
    await clients.until_overdue()
    assert not all(task.done() for task in clients.tasks), "engines should stand still"
    assert await usage(js, stream) < 1.0, "room is left for what ends"
    label = stream.partition("_")[2].lower()
    gauge = f'jetflock_frontend_stream_usage_ratio{{stream="{label}"}} '
    async for _ in Looks(longest_pause_s=0.1):  # it is measured every five seconds
        if _value(await client.get("/metrics"), gauge) >= ENGINE_MARK:
            break
    await set_limit(js, stream, ROOMY)
    await clients.until_ended(texts)
    await until_normal(stack, client)


def _value(metrics: httpx.Response, name: str) -> float:
    lines = [line for line in metrics.text.splitlines() if line.startswith(name)]
    return float(lines[0].removeprefix(name)) if lines else 0.0


@pytest.mark.nightly
async def test_a_full_log_and_then_full_results(tmp_path: Path) -> None:
    async with ready_stack(tmp_path) as (stack, client):
        js, subjects = stack.cluster.js, stack.cluster.subjects
        texts = await expected_texts(stack)

        log = subjects.tokens_stream
        limit = int(RESERVE_BYTES / (1 - ENGINE_MARK))
        info = await js.api(f"STREAM.INFO.{log}")
        missing = int(FULL_ENOUGH * limit) - info["state"]["bytes"]
        for _ in range(4):  # of a worker that is gone: so large that what is left is enough
            await js.publish(subjects.tokens(0, "former"), b"\0" * (missing // 4))
        await set_limit(js, log, limit)
        clients = Clients(stack, client, [4 * NUM_TOKENS] * NUM_STREAMS)
        await clients.start()
        await check_full(log, "--log-max-bytes", clients, texts)

        results = subjects.results_stream
        limit = int(RESERVE_BYTES / (1 - ENGINE_MARK))
        info = await js.api(f"STREAM.INFO.{results}")
        missing = int(FULL_ENOUGH * limit) - info["state"]["bytes"]
        for idx in range(4):
            await js.publish(subjects.done(f"former-{idx}"), b"\0" * (missing // 4))
        await set_limit(js, results, limit)
        lengths = [40 + 4 * idx for idx in range(48)] + [5 * NUM_TOKENS] * 16
        clients = Clients(stack, client, lengths)
        await clients.start()
        await fill(js, results, NEARLY_FULL)  # a few of them fill what is left below the mark
        await check_full(results, "--results-max-bytes", clients, texts)


async def test_a_full_store_of_responses_and_a_detokenizer_that_dies(tmp_path: Path) -> None:
    async with ready_stack(tmp_path) as (stack, client):
        js, subjects = stack.cluster.js, stack.cluster.subjects
        stream = subjects.responses_stream
        bodies = [_response_body(idx % NUM_SEEDS) for idx in range(NUM_STREAMS)]
        accepted = await asyncio.gather(*(_post(client, body) for body in bodies))
        await fill(js, stream, 0.98)
        answer = await refusal(client, 503, url="/v1/responses", json=_response_body(0))
        message = answer.json()["error"]["message"]
        assert "--response-store-bytes" in message
        assert "'store': false" in message
        unkept = await _post(client, {**_response_body(0), "background": False, "store": False})
        text = _text(unkept)
        assert (await client.get("/health/ready")).status_code == 200
        rids = [each["id"].removeprefix("resp_") for each in accepted]
        for rid in rids:  # DONE does not wait
            await eventually_async(lambda: read_done(stack.cluster, rid), 60)  # noqa: B023
        kept = PieceChain(js, stream)
        found = [await kept.read(subjects.response(rid), await _record(stack, rid)) for rid in rids]
        assert None in found, "it should be full"
        for idx, each in enumerate(accepted):  # from what DONE holds
            whole = (await client.get(f"/v1/responses/{each['id']}")).json()
            assert whole["status"] == "incomplete"
            if idx % NUM_SEEDS == 0:
                assert _text(whole) == text
        next(role for role in stack.roles if role.name == "detok-0").kill()
        stack.start_detok()
        await set_limit(js, stream, ROOMY)
        for rid in rids:
            async for _ in Looks(60):
                if await kept.read(subjects.response(rid), await _record(stack, rid)) is not None:
                    break
        await js.api(f"STREAM.PURGE.{subjects.results_stream}")
        for idx, each in enumerate(accepted):
            whole = (await client.get(f"/v1/responses/{each['id']}")).json()
            assert whole["status"] == "incomplete"
            if idx % NUM_SEEDS == 0:
                assert _text(whole) == text
        await _post(client, _response_body(1))


def _response_body(seed: int) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "input": "Once upon a time",
        "max_output_tokens": 100,
        "ignore_eos": True,
        "temperature": 0,
        "seed": seed,
        "background": True,
    }


async def _post(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def _text(response: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in response["output"] for part in item.get("content") or ()
    )


async def _record(stack: RoleStack, rid: str) -> int:
    """Where a result of this response begins, at the earliest."""
    subjects = stack.cluster.subjects
    record = await stack.cluster.js.get_next(subjects.responses_stream, subjects.response(rid), 1)
    assert record is not None
    return record.seq + 1
