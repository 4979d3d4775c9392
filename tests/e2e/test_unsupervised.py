"""Roles that nobody supervises die: those who go on find out by themselves, in about a second."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from detok.owner_table import OwnerTable
from shared.storage.streams import HEARTBEAT_TTL_S, LEASE_PERIOD_S
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.eventually import Looks
from tests.frontend.sse import sse_events

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_STREAMS = 4
BODY: dict[str, Any] = {
    "model": MODEL_NAME,
    "prompt": "Once upon a time",
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
}


async def longest_silence_s(client: httpx.AsyncClient, url: str, started: asyncio.Event) -> float:
    """Between two events of one stream."""
    longest, last = 0.0, time.monotonic()
    async with client.stream("POST", url, json=BODY) as response:
        async for _ in sse_events(response):
            started.set()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return longest


async def test_streams_of_a_killed_worker_go_on_before_its_heartbeat_expires(
    tmp_path: Path,
) -> None:
    async with RoleStack(tmp_path) as stack:
        doomed = stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        url = f"{stack.url()}/v1/completions"
        async with httpx.AsyncClient(timeout=60) as client:
            started = [asyncio.Event() for _ in range(NUM_STREAMS)]
            streams = [
                asyncio.create_task(longest_silence_s(client, url, event)) for event in started
            ]
            await asyncio.gather(*(event.wait() for event in started))
            stack.start_worker(*SCRIPTED)
            await stack.wait_ready(2)
            doomed.kill()
            silences = await asyncio.gather(*streams)
    print("silences", sorted(round(silence, 2) for silence in silences))
    assert max(silences) < HEARTBEAT_TTL_S


async def until_its_lease_tells_presence(stack: RoleStack) -> None:
    """Its first record is written before it hears itself."""
    table = OwnerTable(stack.cluster.js, stack.cluster.subjects)
    async for _ in Looks(60):
        survey = await table.survey()
        if any(lease.has_presence for lease in survey.leases.values()):
            return


async def test_streams_of_a_killed_detokenizer_go_on_before_its_lease_expires(
    tmp_path: Path,
) -> None:
    async with RoleStack(tmp_path) as stack:
        doomed = next(role for role in stack.roles if role.name.startswith("detok"))
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        url = f"{stack.url()}/v1/completions"
        async with httpx.AsyncClient(timeout=60) as client:
            started = [asyncio.Event() for _ in range(NUM_STREAMS)]
            streams = [
                asyncio.create_task(longest_silence_s(client, url, event)) for event in started
            ]
            await asyncio.gather(*(event.wait() for event in started))
            await until_its_lease_tells_presence(stack)
            survivor = stack.start_detok()
            await stack.wait_until(lambda: "partition_acquired" in survivor.log)
            doomed.kill()
            silences = await asyncio.gather(*streams)
    print("silences", sorted(round(silence, 2) for silence in silences))
    assert '"is_gone":true' in survivor.log
    assert max(silences) < 2 * LEASE_PERIOD_S
