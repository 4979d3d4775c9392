"""Kills of workers, detokenizers and frontends: one bill a request, and its sums are the log's."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import httpx
import pytest

from detok.full_fold import fold_from_log
from shared.config import ClusterConfig
from shared.protocol.bills import Bill, decode_bills
from shared.protocol.finish import FinishReason
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, http_client
from tests.eventually import Looks

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 4
NUM_TOKENS = 150


async def bills_of(stack: RoleStack) -> list[Bill]:
    subjects = stack.cluster.subjects
    scan = stack.cluster.js.direct_scan(subjects.bills_stream, subjects.bills("*"))
    return [bill async for message in scan for bill in decode_bills(message.data).bills]


async def test_each_request_has_one_bill_over_kills_of_all_roles(tmp_path: Path) -> None:
    config = ClusterConfig(num_partitions=2, bills_ttl_s=86_400.0)
    async with RoleStack(tmp_path, "--ack-wait-s", "3", config=config) as stack:
        frontend, detok = stack.roles
        worker = stack.start_worker(*SCRIPTED)
        stack.start_detok()
        await stack.wait_ready(1)
        streams = [Stream() for _ in range(NUM_STREAMS)]
        async with asyncio.TaskGroup() as tasks:
            for seed, stream in enumerate(streams):
                body = completion_body(seed=seed, max_tokens=NUM_TOKENS)
                tasks.create_task(_post(stream, stack.url(), body))
            for stream in streams:
                await stream.wait_for_tokens(10)
            stack.start_worker(*SCRIPTED)
            await stack.wait_ready(2)
            worker.kill()
            detok.kill()
            stack.start_detok()
            for stream in streams:
                await stream.wait_for_tokens(75)
            second = stack.start_frontend("--orphan-wait-s", "1")
            frontend.kill()
        async for _ in Looks(90):
            if len(bills := await bills_of(stack)) >= NUM_STREAMS:
                break
        assert set(Counter(bill.rid for bill in bills).values()) == {1}
        async with http_client() as client:
            async for _ in Looks():  # an answer may be a second old
                answer = await client.get(f"{stack.url(second)}/v1/usage?by=model")
                rows = answer.json()["data"]
                if [row["num_requests"] for row in rows] == [NUM_STREAMS]:
                    break
        [row] = rows
        assert row["num_output_tokens"] == sum(bill.num_output_tokens for bill in bills)
        assert row["engine_s"] == pytest.approx(sum(bill.engine_s for bill in bills))
        for bill in bills:
            fold = await fold_from_log(stack.cluster, bill.rid)
            assert fold is not None
            assert bill.num_output_tokens == len(fold.tokens) >= 150
            assert bill.reason in (FinishReason.LENGTH, FinishReason.CANCEL)
            # Its prompt was computed twice, and what the killed worker did not tell is bounded.
            assert bill.num_handovers == 1
            assert 0 < bill.num_repeated_tokens < bill.num_computed_tokens
            assert 0 < bill.repeated_s < bill.engine_s <= bill.held_s
            assert bill.unmeasured_s > 0


async def _post(stream: Stream, url: str, body: dict[str, object]) -> None:
    with contextlib.suppress(httpx.HTTPError):  # its frontend dies
        await stream.post(url, body)
