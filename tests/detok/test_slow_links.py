"""Detokenizers on slow links and slow machines: text comes, whole and exact, beside a rival."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from bench.chaos.tcp_proxy import TcpProxy
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.role_cards import RoleCard
from shared.storage.streams import LEASE_PERIOD_S
from tests.detok.scripted import (
    Stage,
    make_rid,
    owners,
    start_detok_process,
    wait_for_done,
    wait_for_owners,
)
from tests.eventually import Looks, eventually
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.integration, pytest.mark.timed, pytest.mark.timeout(240)]

TEXT = "the quick brown fox jumps over the lazy dog 日本語 🙂"


@contextlib.asynccontextmanager
async def two_detoks(nats_url: str) -> AsyncIterator[list[int]]:
    """Their process ids."""
    processes = [start_detok_process(nats_url) for _ in range(2)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def both_own(stage: Stage) -> None:
    async for _ in Looks(100):  # a newcomer may wait for an offer, which comes after 30 s
        if len(set((await owners(stage.cluster)).values())) == 2:
            return


async def tell_stories(stage: Stage, *, step_s: float, timeout_s: float) -> None:
    """One in each partition, written step by step; both are heard whole."""
    worker, listener = stage.worker(), stage.listener
    rids = [make_rid(stage.cluster, partition) for partition in (0, 1)]
    epochs = [await worker.claim(rid) for rid in rids]
    ids = stage.ids(TEXT)
    for i, token_id in enumerate(ids):
        for rid, epoch in zip(rids, epochs, strict=True):
            await worker.write(rid, epoch, i, [token_id])
        await asyncio.sleep(step_s)
    for rid, epoch in zip(rids, epochs, strict=True):
        await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP))
    for rid in rids:
        await eventually(listener.has_finished(rid), timeout_s)
        assert listener.text(rid) == TEXT
        assert (await wait_for_done(stage.cluster, rid, timeout_s)).text == TEXT


@pytest.mark.parametrize(
    "round_trip_s",
    [
        0.1,
        pytest.param(0.4, marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param(1.0, marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
async def test_a_slow_link_delays_text_and_loses_none(
    stage: Stage, nats_server: NatsServer, round_trip_s: float
) -> None:
    async with (
        TcpProxy(nats_server.port, delay_s=round_trip_s / 2) as proxy,
        two_detoks(f"nats://127.0.0.1:{proxy.port}"),
    ):
        await both_own(stage)
        before = await owners(stage.cluster)
        await tell_stories(stage, step_s=0.1, timeout_s=5 + 4 * round_trip_s)
        await time_to_err(2 * LEASE_PERIOD_S)
        assert await owners(stage.cluster) == before  # nobody lost anything


async def test_a_tenth_of_a_core_delays_text_and_loses_none(
    stage: Stage, nats_server: NatsServer
) -> None:
    async with two_detoks(nats_server.url) as pids:
        await both_own(stage)
        slowing = asyncio.create_task(_slow_down(pids))
        try:
            await time_to_err(3.0)
            await tell_stories(stage, step_s=0.1, timeout_s=20)
        finally:
            slowing.cancel()
            await asyncio.wait([slowing])


async def _slow_down(pids: list[int]) -> None:
    """They run for 50 ms of every 500, one after the other."""
    try:
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                await asyncio.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.05)
                os.kill(pid, signal.SIGSTOP)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_a_killed_one_is_replaced_within_two_seconds(
    stage: Stage, nats_server: NatsServer
) -> None:
    async with two_detoks(nats_server.url) as pids:
        await both_own(stage)
        dead = next(each for each in set((await owners(stage.cluster)).values()))
        cards = await stage.cluster.bucket(stage.cluster.subjects.roles_bucket).entries()
        assert len(cards) == len(pids)
        (pid,) = [decode(RoleCard, card.value).pid for card in cards if card.key == dead]
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        await wait_for_owners(stage.cluster, {dead})
        took_s = time.monotonic() - killed_at
        assert took_s < 2.0
