"""Usage: the sums of the bills that are stored, for who may see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from frontend.cluster.usage import UsageBook, UsageQuery
from frontend.cluster.view import Viewer
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import InvalidRequest, NotFound
from shared.protocol.bills import Bill, BillBatch, encode_bills
from shared.protocol.finish import FinishReason
from tests.nats_server import NatsServer

NOON = 1_795_867_200.0  # of 2026-11-28, UTC
DAY_S = 86_400.0
OPERATOR = Viewer("boss", is_operator=True)
ALICE = Viewer("alice", is_operator=False)


def make_bill(owner: str, day: int = 0, model: str = "m", **fields: Any) -> Bill:
    ended_at = NOON + day * DAY_S
    return Bill("r", "r", ended_at, FinishReason.STOP, model, owner=owner, tenant=owner, **fields)


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, bills_ttl_s=30 * DAY_S)
    async with open_cluster(config, "test") as cluster:
        yield cluster


async def store(cluster: Cluster, first: int, *bills: Bill, partition: int = 0) -> None:
    payload = encode_bills(BillBatch(2, partition, first, list(bills)))
    await cluster.js.publish(cluster.subjects.bills(partition), payload)


@pytest.mark.integration
async def test_tenants_see_their_own_and_operators_all(cluster: Cluster) -> None:
    book = UsageBook(cluster)
    assert (await book.usage(UsageQuery(), OPERATOR)).data == []
    alice = make_bill("alice", num_output_tokens=5, engine_s=0.5)
    await store(cluster, 0, alice, make_bill("bob", num_output_tokens=7))
    await store(cluster, 0, make_bill("alice", day=1, num_output_tokens=11), partition=1)

    own = await book.usage(UsageQuery(), ALICE)
    assert [(row.day, row.tenant, row.num_output_tokens, row.engine_s) for row in own.data] == [
        ("2026-11-28", "alice", 5, 0.5),
        ("2026-11-29", "alice", 11, 0.0),
    ]
    by_model = UsageQuery.read({"by": "model", "until": "2026-11-28"})
    [row] = (await book.usage(by_model, OPERATOR)).data
    assert (row.day, row.tenant, row.num_requests, row.num_output_tokens) == (None, None, 2, 12)
    assert (await book.usage(UsageQuery.read({"model": "other"}), OPERATOR)).data == []

    # What is gone before it was read is told: bills 2 and 3 of partition 0.
    await store(cluster, 4, make_bill("alice", day=1))
    late = await book.usage(UsageQuery.read({"since": "2026-11-29", "by": "day"}), ALICE)
    assert [(row.num_requests, late.num_lost) for row in late.data] == [(2, 2)]


@pytest.mark.integration
async def test_where_no_bills_are_kept_a_404_says_how(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        with pytest.raises(NotFound, match="--bills-ttl-s"):
            await UsageBook(cluster).usage(UsageQuery(), OPERATOR)


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
