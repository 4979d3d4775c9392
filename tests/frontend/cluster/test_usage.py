"""Usage: the sums of the bills that are stored, for who may see them, from wherever they begin."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from frontend.cluster import usage
from frontend.cluster.usage import UsageBook, UsageQuery
from frontend.cluster.view import Viewer
from shared.broker.kv_bucket import KvBucket
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable, InvalidRequest, NotFound
from shared.protocol.bills import Bill, BillBatch, encode_bills
from shared.protocol.finish import FinishReason
from shared.service.usage_sums import UsageSums
from tests.nats_server import NatsServer

DAY_S = 86_400.0
NOON = time.time() // DAY_S * DAY_S + DAY_S / 2  # of today, UTC
OPERATOR = Viewer("boss", is_operator=True)
ALICE = Viewer("alice", is_operator=False)
CONFIG: dict[str, Any] = {"bills_ttl_s": 30 * DAY_S, "num_partitions": 2}


def day_name(day: int) -> str:
    return datetime.datetime.fromtimestamp(NOON + day * DAY_S, datetime.UTC).date().isoformat()


def make_bill(owner: str, day: int = 0, model: str = "m", **fields: Any) -> Bill:
    ended_at = NOON + day * DAY_S
    return Bill("r", "r", ended_at, FinishReason.STOP, model, owner=owner, tenant=owner, **fields)


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_FRESH_S", 0.0)


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, **CONFIG)
    async with open_cluster(config, "test") as cluster:
        yield cluster


async def store(cluster: Cluster, first: int, *bills: Bill, partition: int = 0) -> None:
    payload = encode_bills(BillBatch(2, partition, first, list(bills)))
    await cluster.js.publish(cluster.subjects.bills(partition), payload)


class Stored:
    """Bills of four tenants on three days, as random as their number in a message."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random = random.Random(7)
        self._next_numbers = [0, 0]
        self.num_tokens: dict[tuple[str, str], int] = {}  # by day and tenant

    async def add(self, num_messages: int) -> None:
        draw = self._random
        for _ in range(num_messages):
            bills = [
                make_bill(
                    draw.choice(("alice", "bob", "carol", "")),
                    draw.choice((-2, -1, 0)),
                    num_output_tokens=draw.randrange(1, 1000),
                )
                for _ in range(draw.randrange(1, 9))
            ]
            for bill in bills:
                key = day_name(round((bill.ended_at - NOON) / DAY_S)), bill.owner
                self.num_tokens[key] = self.num_tokens.get(key, 0) + bill.num_output_tokens
            partition = draw.randrange(2)
            await store(self._cluster, self._next_numbers[partition], *bills, partition=partition)
            self._next_numbers[partition] += len(bills)

    async def are_told_by(self, book: UsageBook) -> None:
        report = await book.usage(UsageQuery(by=("day", "tenant")), OPERATOR)
        told = {(row.day, row.tenant): row.num_output_tokens for row in report.data}
        assert told == self.num_tokens
        assert report.num_lost == 0


async def stored_by(cluster: Cluster) -> None:
    """By a frontend that ends then."""
    sums = UsageSums(cluster.js, cluster.subjects)
    await sums.catch_up()
    await sums.store()


@pytest.mark.integration
async def test_tenants_see_their_own_and_operators_all(cluster: Cluster) -> None:
    book = UsageBook(cluster)
    assert (await book.usage(UsageQuery(), OPERATOR)).data == []
    alice = make_bill("alice", num_output_tokens=5, engine_s=0.5)
    await store(cluster, 0, alice, make_bill("bob", num_output_tokens=7))
    await store(cluster, 0, make_bill("alice", day=1, num_output_tokens=11), partition=1)

    own = await book.usage(UsageQuery(), ALICE)
    assert [(row.day, row.tenant, row.num_output_tokens, row.engine_s) for row in own.data] == [
        (day_name(0), "alice", 5, 0.5),
        (day_name(1), "alice", 11, 0.0),
    ]
    by_model = UsageQuery.read({"by": "model", "until": day_name(0)})
    [row] = (await book.usage(by_model, OPERATOR)).data
    assert (row.day, row.tenant, row.num_requests, row.num_output_tokens) == (None, None, 2, 12)
    assert (await book.usage(UsageQuery.read({"model": "other"}), OPERATOR)).data == []

    # What is gone before it was read is told: bills 2 and 3 of partition 0.
    await store(cluster, 4, make_bill("alice", day=1))
    late = await book.usage(UsageQuery.read({"since": day_name(1), "by": "day"}), ALICE)
    assert [(row.num_requests, late.num_lost) for row in late.data] == [(2, 2)]


@pytest.mark.integration
async def test_sums_outlive_bills_and_the_frontends_that_summed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, stream = Stored(cluster), cluster.subjects.bills_stream
    await stored.add(20)
    await stored_by(cluster)
    await cluster.js.purge(stream, cluster.subjects.bills("*"))  # they have made room
    await stored.add(20)
    await stored.are_told_by(UsageBook(cluster))

    async def dies(bucket: KvBucket, key: str, value: bytes, revision: int) -> int:
        if key == "head":
            raise BrokerUnavailable("killed")
        return await put_if(bucket, key, value, revision)

    put_if = KvBucket.put_if
    with monkeypatch.context() as patch:
        patch.setattr(KvBucket, "put_if", dies)
        with pytest.raises(BrokerUnavailable, match="killed"):
            await stored_by(cluster)
    await stored.are_told_by(UsageBook(cluster))  # parts that are further than the head
    await stored_by(cluster)
    await cluster.js.purge(stream, cluster.subjects.bills("*"))
    await stored.are_told_by(UsageBook(cluster))


@pytest.mark.integration
async def test_who_is_behind_takes_nothing_back(cluster: Cluster) -> None:
    stored = Stored(cluster)
    await stored.add(5)
    behind, ahead = UsageSums(cluster.js, cluster.subjects), UsageSums(cluster.js, cluster.subjects)
    await behind.catch_up()
    await behind.store()
    await stored.add(5)
    await ahead.catch_up()
    await ahead.store()
    await behind.store()  # knows less
    await stored.are_told_by(UsageBook(cluster))
    await stored.add(5)
    await behind.catch_up()
    await behind.store()  # and, further by now, does not know what the other has written
    await cluster.js.purge(cluster.subjects.bills_stream, cluster.subjects.bills("*"))
    await stored.are_told_by(UsageBook(cluster))


@pytest.mark.integration
async def test_sums_go_with_their_age_and_with_the_stream(
    cluster: Cluster, nats_server: NatsServer
) -> None:
    book = UsageBook(cluster)
    await store(cluster, 0, make_bill("alice", day=-31), make_bill("alice", day=-29))
    assert [row.day for row in (await book.usage(UsageQuery(), ALICE)).data] == [day_name(-29)]
    await stored_by(cluster)
    await cluster.js.api(f"STREAM.DELETE.{cluster.subjects.bills_stream}")
    with pytest.raises(NotFound, match="--bills-ttl-s"):
        await book.usage(UsageQuery(), OPERATOR)
    async with open_cluster(ClusterConfig(nats_url=nats_server.url, **CONFIG), "again"):
        stored = Stored(cluster)
        await stored.add(3)
        for each in (book, UsageBook(cluster)):
            await stored.are_told_by(each)


@pytest.mark.integration
async def test_where_no_bills_are_kept_a_404_says_how(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        with pytest.raises(NotFound, match="--bills-ttl-s"):
            await UsageBook(cluster).usage(UsageQuery(), OPERATOR)


@pytest.mark.integration
async def test_an_answer_that_would_be_too_long_says_what_to_ask(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_MAX_ROWS", 1)
    await store(cluster, 0, make_bill("alice"), make_bill("bob"))
    with pytest.raises(InvalidRequest, match="'by' makes 2 rows"):
        await UsageBook(cluster).usage(UsageQuery(), OPERATOR)
    [row] = (await UsageBook(cluster).usage(UsageQuery.read({"by": ""}), OPERATOR)).data
    assert row.num_requests == 2


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"since": "yesterday"}, "'since' is 'yesterday', must be a day"),
        ({"by": "day,color"}, "'by' names 'color'"),
        ({"untill": "2026-11-28"}, "'untill' is no field"),
    ],
)
def test_a_query_that_is_wrong_names_field_and_value(query: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        UsageQuery.read(query)
