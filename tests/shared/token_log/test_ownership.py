"""The ownership log: one chain by compare-and-set (I1), read from the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable, CasConflict
from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.notices import Cancel
from shared.protocol.request import FEATURE_LEVEL
from tests.bad_moment import answer_lost_once
from tests.nats_server import NatsServer
from tests.shared.simulated_log import REPLY, RID, make_claim

pytestmark = pytest.mark.integration

END = End(0, FinishReason.CANCEL, "frontend", "gone", REPLY)


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


async def test_the_chain_is_read_back_in_order(cluster: Cluster) -> None:
    log = cluster.ownership
    assert await log.read(RID) == []
    assert await log.last(RID) is None
    first = await log.append(RID, make_claim(0, "w1"))
    await log.append("1" * 32, make_claim(0, "w9"))
    second = await log.append(RID, Release(first, "w1"))
    third = await log.append(RID, make_claim(second, "w2"))

    records = await log.read(RID)
    assert [stored.seq for stored in records] == [first, second, third]
    assert [type(stored.record) for stored in records] == [Claim, Release, Claim]
    assert [stored.record.prev for stored in records] == [0, first, second]
    assert records[0].time <= records[1].time <= records[2].time
    assert await log.last(RID) == records[2]
    assert await log.first_from(RID, first + 1) == records[1]
    assert await log.first_from(RID, third + 1) is None


@pytest.mark.parametrize("record", [make_claim(0, "w2"), Release(7, "w1"), END])
async def test_a_record_with_another_predecessor_is_refused(
    cluster: Cluster, record: OwnershipRecord
) -> None:
    first = await cluster.ownership.append(RID, make_claim(0, "w1"))
    with pytest.raises(CasConflict):
        await cluster.ownership.append(RID, record)
    assert [stored.seq for stored in await cluster.ownership.read(RID)] == [first]


async def test_an_end_follows_whatever_is_last_and_only_once(cluster: Cluster) -> None:
    first = await cluster.ownership.append(RID, make_claim(0, "w1"))
    assert await cluster.ownership.end(RID, END) is not None
    assert await cluster.ownership.end(RID, END) is None
    records = await cluster.ownership.read(RID)
    assert len(records) == 2
    stamped = End(first, END.reason, END.by, END.message, END.reply, FEATURE_LEVEL)
    assert records[1].record == stamped


async def test_an_end_whose_answer_was_lost_is_found_as_ones_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await cluster.ownership.append(RID, make_claim(0, "w1"))
    answer_lost_once(monkeypatch, cluster.ownership, "append", BrokerUnavailable("no answer"))
    assert await cluster.ownership.end(RID, END) == first
    assert len(await cluster.ownership.read(RID)) == 2


async def test_an_end_wins_against_claims_that_come_in_between(cluster: Cluster) -> None:
    log = cluster.ownership
    seq = await log.append(RID, make_claim(0, "w0"))
    real_last = log.last
    rivals = 3

    async def last_then_a_rival(rid: str):  # type: ignore[no-untyped-def]
        nonlocal rivals, seq
        found = await real_last(rid)
        if rivals:
            rivals -= 1
            seq = await log.append(RID, make_claim(seq, f"rival{rivals}"))
        return found

    object.__setattr__(log, "last", last_then_a_rival)
    assert await log.end(RID, END)
    assert [type(stored.record) for stored in await log.read(RID)] == [Claim] * 4 + [End]


async def test_an_end_without_a_broker_says_so(cluster: Cluster, nats_server: NatsServer) -> None:
    nats_server.kill()
    cluster.js._timeout_s = 0.1
    with pytest.raises(BrokerUnavailable):
        await cluster.ownership.end(RID, END, attempts=2)


async def test_held_by_means_the_very_last_word(cluster: Cluster) -> None:
    log = cluster.ownership
    assert not await log.is_held_by(RID, "w1", 1)
    first = await log.append(RID, make_claim(0, "w1"))
    assert await log.is_held_by(RID, "w1", first)
    assert not await log.is_held_by(RID, "w2", first)
    second = await log.append(RID, make_claim(first, "w1"))
    assert not await log.is_held_by(RID, "w1", first)
    await log.append(RID, Release(second, "w1"))
    assert not await log.is_held_by(RID, "w1", second)


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"\x81\xa1v\x02", encode(Cancel("x"))])
async def test_a_message_that_is_no_record_counts_for_nobody(
    cluster: Cluster, nonsense: bytes
) -> None:
    log, subject = cluster.ownership, cluster.subjects.ownership(RID)

    async def disturb() -> None:
        await cluster.js.publish(subject, nonsense)
        await cluster.js.publish(subject, nonsense)

    await disturb()
    assert await log.read(RID) == []
    assert await log.last(RID) is None
    first = await log.append(RID, make_claim(0, "w1"))
    await disturb()
    assert await log.is_held_by(RID, "w1", first)
    assert await log.first_from(RID, first + 1) is None
    with pytest.raises(CasConflict):
        await log.append(RID, Release(0, "w1"))
    second = await log.append(RID, Release(first, "w1"))
    await disturb()
    assert await log.end(RID, END)
    assert [stored.record.prev for stored in await log.read(RID)] == [0, first, second]
