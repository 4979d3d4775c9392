"""The nats-server of the frontend is cut off from its peers: streams go on, whole and soon."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shared.config import ClusterConfig
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks
from tests.nats_cluster import ClusteredServer
from tests.parted_cluster import PartedCluster
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STREAMS = 4
NUM_TOKENS = 750  # 15 s
ELECTION_S = 9.0  # at most, as NATS does it
SILENCE_S = 5.0  # beyond


@pytest.mark.nightly
async def test_streams_go_on_by_way_of_another_server(tmp_path: Path) -> None:
    async with (
        PartedCluster(tmp_path / "nats") as nats,
        RoleStack(
            tmp_path, "--replicas", "3", nats=nats, config=ClusterConfig(replicas=3)
        ) as stack,
    ):
        stack.start_worker(*SCRIPTED)
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(2)
        expected = await asyncio.gather(
            *(run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS) for seed in range(2))
        )
        streams = [Stream() for _ in range(NUM_STREAMS)]
        tasks = [
            asyncio.create_task(
                stream.post(stack.url(), completion_body(seed=seed % 2, max_tokens=NUM_TOKENS))
            )
            for seed, stream in enumerate(streams)
        ]
        for stream in streams:
            await stream.wait_for_tokens(15)
        cut = server_of_frontend(nats)
        assert cut is not None
        nats.isolate(cut)
        cut_at = time.monotonic()
        reasons = await until_elsewhere_and_ready(stack, nats, cut)
        ready_s = time.monotonic() - cut_at
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)
        gap_s = max(stream.max_gap_s for stream in streams)
        print(f"ready again after {ready_s:.1f} s, longest gap {gap_s:.1f} s; {reasons}")
        assert [stream.text for stream in streams] == [expected[i % 2].text for i in range(4)]
        assert gap_s < ELECTION_S + SILENCE_S
        assert ready_s < ELECTION_S + SILENCE_S
        nats.heal()
        await time_to_err(5)
        assert all(role.is_alive for role in stack.roles), "a healed partition ends nobody"
        assert (await run_stream(stack.url(), seed=0, max_tokens=50)).is_done


def server_of_frontend(nats: PartedCluster) -> ClusteredServer | None:
    """The one that its first connection is to; None on its way between two."""
    for server in nats.servers:
        names = [str(each.get("name")) for each in server.monitor("connz")["connections"]]
        if any(re.fullmatch("frontend-[^-]+", name) for name in names):
            return server
    return None


async def until_elsewhere_and_ready(
    stack: RoleStack, nats: PartedCluster, cut: ClusteredServer
) -> set[str]:
    """What `/health/ready` says meanwhile: it need not say anything if the frontend leaves soon."""
    reasons: set[str] = set()
    async for _ in Looks(60, lambda: f"not ready again: {reasons}"):
        told = await asyncio.to_thread(reasons_of, f"{stack.url()}/health/ready")
        reasons.update(told)
        if not told and server_of_frontend(nats) not in (None, cut):
            break
    return reasons


def reasons_of(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return []
    except urllib.error.HTTPError as exc:
        return list(json.load(exc)["why"])
