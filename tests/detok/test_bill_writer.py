"""Bills of a partition: each once and numbered, whoever writes them, and held until they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from detok import tokenizer_cache
from detok.bill_writer import BillWriter
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.done_writer import DoneWriter
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.bills import Bill, BillBatch, decode_bills
from shared.protocol.finish import FinishReason
from tests.detok.scripted import ScriptedWorker, make_rid, open_stage, running_detok, wait_for_done
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

REBUILT_FROM = 3


def make_bill(place: int, rid: str = "a") -> Bill:
    return Bill(rid, rid, 1.5, FinishReason.STOP, place=place)


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=1, bills_ttl_s=86_400.0)
    async with open_cluster(config, "test") as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def writing(writer: BillWriter, settled_to: int) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run(lambda: settled_to))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_floor_is(writer: BillWriter, floor: int | None) -> None:
    await eventually(lambda: writer.floor == floor)


async def stored(cluster: Cluster) -> list[BillBatch]:
    subjects = cluster.subjects
    scan = cluster.js.direct_scan(subjects.bills_stream, subjects.bills("*"))
    return [decode_bills(message.data) async for message in scan]


async def test_two_owners_write_each_bill_once(cluster: Cluster) -> None:
    bills = [make_bill(7, "b"), make_bill(7, "a"), make_bill(9), make_bill(12)]
    one, other = (BillWriter(cluster, 0, DetokStats()) for _ in range(2))
    async with writing(one, settled_to=12), writing(other, settled_to=12):
        for bill in bills:
            one.add(bill, REBUILT_FROM)
            other.add(bill, REBUILT_FROM)
        await until_floor_is(one, None)
        await until_floor_is(other, None)
    batches = await stored(cluster)
    told = [(bill.place, bill.rid) for batch in batches for bill in batch.bills]
    assert told == [(7, "a"), (7, "b"), (9, "a"), (12, "a")]
    assert [batch.first for batch in batches] == [
        sum(len(before.bills) for before in batches[:i]) for i in range(len(batches))
    ]


async def test_the_next_owner_writes_no_bill_again(cluster: Cluster) -> None:
    first = BillWriter(cluster, 0, DetokStats())
    async with writing(first, settled_to=20):
        first.add(make_bill(7), REBUILT_FROM)
        await until_floor_is(first, None)
    stats = DetokStats()
    second = BillWriter(cluster, 0, stats)
    async with writing(second, settled_to=20):
        second.add(make_bill(7), REBUILT_FROM)
        second.add(make_bill(8), REBUILT_FROM)
        await until_floor_is(second, None)
    assert [(batch.first, batch.bills[0].place) for batch in await stored(cluster)] == [
        (0, 7),
        (1, 8),
    ]
    assert stats.bills == 1


async def test_what_is_not_stored_holds_the_floor(cluster: Cluster) -> None:
    writer = BillWriter(cluster, 0, DetokStats())
    writer.add(make_bill(7), REBUILT_FROM)
    writer.add(make_bill(5), 2)
    async with writing(writer, settled_to=6):
        await until_floor_is(writer, REBUILT_FROM)
    assert [bill.place for batch in await stored(cluster) for bill in batch.bills] == [5]


async def test_without_a_stream_of_bills_none_are_held(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=1)
    async with open_cluster(config, "test") as cluster:
        writer = BillWriter(cluster, 0, DetokStats())
        writer.add(make_bill(7), REBUILT_FROM)
        async with writing(writer, settled_to=9):
            await until_floor_is(writer, None)
            writer.add(make_bill(8), REBUILT_FROM)
            assert writer.floor is None


async def test_who_fails_behind_an_end_has_a_bill_too(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finish is in no log, and its place is told before its result is stored."""
    is_let = asyncio.Event()
    write = DoneWriter.write

    async def write_late(self: DoneWriter, status: DecodeStatus) -> bool:
        if status.has_failed:
            await is_let.wait()
        return await write(self, status)

    monkeypatch.setattr(DoneWriter, "write", write_late)
    monkeypatch.setattr(tokenizer_cache, "_MAX_ATTEMPTS", 1)
    async with open_stage(nats_server.url, bills_ttl_s=86_400.0) as stage:
        cluster = stage.cluster
        failing, other = make_rid(cluster), make_rid(cluster)
        stranger = ScriptedWorker(cluster, "no such tokenizer", stage.listener.subject)
        async with running_detok(stage.config):
            await stranger.write(failing, await stranger.claim(failing), 0, [5])
            await eventually(stage.listener.has_finished(failing))
            worker = stage.worker()
            await worker.finish(other, await worker.claim(other), 0)
            await wait_for_done(cluster, other)
            await time_to_err(1.2)
            is_let.set()

            async def billed() -> bool:
                bills = [bill.rid for batch in await stored(cluster) for bill in batch.bills]
                return bills == [failing, other]

            await eventually_async(billed)
