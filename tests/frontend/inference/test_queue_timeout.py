"""A bound on the time until a worker claims a request."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from shared.protocol.codec import decode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End
from shared.protocol.request import GenerateRequest
from tests.eventually import eventually, eventually_async
from tests.frontend.conftest import Stack
from tests.frontend.inference.test_accept import BODY, CHAT
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


async def queued(stack: Stack) -> GenerateRequest:
    subjects = stack.cluster.subjects
    await stack.until_queued(1)
    message = await stack.cluster.js.get_last(
        subjects.requests_stream, subjects.requests(stack.card.pool, "interactive")
    )
    assert message is not None
    return decode(GenerateRequest, message.data)


async def claim(stack: Stack, request: GenerateRequest) -> None:
    record = Claim(
        prev=0,
        worker="w",
        nonce="n",
        request_seq=1,
        ack_subject="ack.none",
        tokenizer_hash=request.tokenizer_hash,
        text=request.text,
        reply=request.reply,
        pool=request.pool,
    )
    await stack.cluster.ownership.append(request.rid, record)


def assert_timed_out(answer: httpx.Response) -> None:
    assert answer.status_code == 408
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("queue_timeout", "timeout_error")
    assert "within 0.5 s" in error["message"]


@pytest.mark.parametrize("is_default", [False, True])
async def test_a_request_that_nobody_claims_ends_on_time(stack: Stack, is_default: bool) -> None:
    stack.backend.hold.clear()
    options = {"queue_timeout_s": 0.5} if is_default else {}
    running = await stack.start_frontend(**options)
    # Who asks for more than the operator allows gets what he allows.
    body = {**BODY, "queue_timeout_s": 60 if is_default else 0.5}
    async with running.client() as client:
        sent_at = time.monotonic()
        task = asyncio.create_task(client.post(CHAT, json=body))
        request = await queued(stack)
        last = await eventually_async(lambda: stack.cluster.ownership.last(request.rid))
        assert 0.5 <= time.monotonic() - sent_at < 5
        assert isinstance(last.record, End)
        assert last.record.reason is FinishReason.QUEUE_TIMEOUT
        assert last.record.reply == request.reply, "the detokenizer knows whom to tell"
        stack.backend.hold.set()
        assert_timed_out(await task)
        ended = running.metrics.answers.ended.labels("queue_timeout")
        await eventually(lambda: ended.value == 1)


async def test_what_was_claimed_goes_on(stack: Stack) -> None:
    stack.backend.hold.clear()
    running = await stack.start_frontend()
    async with running.client() as client:
        task = asyncio.create_task(client.post(CHAT, json={**BODY, "queue_timeout_s": 0.5}))
        request = await queued(stack)
        await claim(stack, request)
        (generation,) = running.frontend.side.streams.router.generations
        await eventually(lambda: generation.queue_timeout_at == float("inf"))
        await time_to_err(0.5)
        assert len(await stack.cluster.ownership.read(request.rid)) == 1
        stack.backend.hold.set()
        assert (await task).status_code == 200


async def test_other_values_are_refused(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        for value in (0, -1, "5", True):
            refused = await client.post(CHAT, json={**BODY, "queue_timeout_s": value})
            assert refused.status_code == 400, value
            assert refused.json()["error"]["param"] == "queue_timeout_s"
