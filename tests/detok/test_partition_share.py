"""Partitions: one owner at a time, an even share, nothing orphaned, nothing taken from others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from detok import partition_share
from detok.lease import Tenure
from detok.owner_table import OwnerTable
from detok.partition_share import PartitionShare
from detok.silent_peers import Patience
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.liveness.presence import present
from shared.protocol.leases import LeaseRecord, PartitionOwner
from shared.storage.streams import LEASE_PERIOD_S
from tests.detok.scripted import PATIENCE_S, owners
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=4)
    async with open_cluster(config, "test") as cluster:
        yield cluster


@pytest.fixture
def table(cluster: Cluster) -> OwnerTable:
    return OwnerTable(cluster.js, cluster.subjects)


class Holder:
    """A share, and what it told."""

    def __init__(self, cluster: Cluster, detok_id: str) -> None:
        self.id = detok_id
        self.told: list[str] = []
        self.tenures: list[Tenure] = []
        self.num_valid = 0
        self.is_killed = False  # it gives nothing back
        self.share = PartitionShare(
            cluster, detok_id, self._on_acquired, self._on_lost, self._on_valid
        )

    def _on_acquired(self, tenure: Tenure) -> None:
        self.told.append(f"+{tenure.partition}")
        self.tenures.append(tenure)

    def _on_lost(self, tenure: Tenure) -> None:
        assert not tenure.is_valid
        self.told.append(f"-{tenure.partition}")

    def _on_valid(self) -> None:
        self.num_valid += 1

    @property
    def held(self) -> list[int]:
        return sorted(tenure.partition for tenure in self.share.held)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Holder]:
        task = asyncio.create_task(self.share.run())
        try:
            yield self
        finally:
            if self.is_killed:
                task.cancel()
                await asyncio.wait([task])
            else:
                self.share.stop()
                await asyncio.wait_for(task, PATIENCE_S)


@pytest.mark.timed
async def test_one_alone_takes_all_and_gives_all_back(cluster: Cluster, table: OwnerTable) -> None:
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 2, 3])
        await time_to_err(LEASE_PERIOD_S + 0.5)  # renewed all along
        assert sorted(holder.told) == ["+0", "+1", "+2", "+3"]
        assert await owners(cluster) == dict.fromkeys("0123", "a")
    assert sorted(holder.told[4:]) == ["-0", "-1", "-2", "-3"]
    survey = await table.survey()
    assert survey.leases == {}
    assert all(seen.owner is None for seen in survey.owners.values())


async def test_three_share_evenly(cluster: Cluster) -> None:
    a, b, c = (Holder(cluster, name) for name in "abc")
    async with a.running(), b.running(), c.running():
        await eventually(lambda: sorted(a.held + b.held + c.held) == [0, 1, 2, 3])
        await eventually(lambda: max(len(a.held), len(b.held), len(c.held)) == 2)
        await eventually(lambda: sorted(a.held + b.held + c.held) == [0, 1, 2, 3])


@pytest.mark.timed
async def test_what_one_gives_back_and_does_not_want_goes_to_the_other_for_good(
    cluster: Cluster,
) -> None:
    a, b = Holder(cluster, "a"), Holder(cluster, "b")
    async with a.running():
        await eventually(lambda: len(a.held) == 4)
        async with b.running():
            await eventually(lambda: len(b.held) == 2)
            a.share.stop()
            await eventually(lambda: len(b.held) == 4)
            await time_to_err(2)
            assert not any(told.startswith("-") for told in b.told)


@pytest.mark.timed
async def test_what_is_given_back_is_taken_in_milliseconds(
    cluster: Cluster, table: OwnerTable
) -> None:
    await table.write_lease(LeaseRecord("other", "n", 9000), 0)
    revision = await table.write_owner(2, other := PartitionOwner("other", "n"), 0)
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 3])
        waits: list[float] = []
        for _ in range(5):
            await asyncio.sleep(0.05)
            started = time.monotonic()
            await table.write_owner(2, None, revision)
            await eventually(lambda: 2 in holder.held)
            waits.append(time.monotonic() - started)
            revision = await table.write_owner(2, other, holder.tenures[-1].revision)
            await eventually(lambda: 2 not in holder.held)
        assert min(waits) < 0.1


async def test_what_a_dead_one_owned_is_taken_when_its_lease_has_expired(
    cluster: Cluster, table: OwnerTable
) -> None:
    await table.write_lease(LeaseRecord("dead", "n", 900), 0)
    await table.write_owner(2, PartitionOwner("dead", "n"), 0)
    holder = Holder(cluster, "a")
    seen_at = time.monotonic()  # or later
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 3])
        await eventually(lambda: holder.held == [0, 1, 2, 3])
        assert time.monotonic() - seen_at > 0.9

        async def is_removed() -> bool:
            survey = await table.survey()
            return "n" not in survey.leases.keys() | survey.ended

        await eventually_async(is_removed)


@pytest.mark.parametrize("case", ["gone", "slow", "of an earlier version", "back in time"])
async def test_only_who_is_gone_loses_its_lease_before_it_expires(
    cluster: Cluster, table: OwnerTable, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "back in time":  # for which a busy machine needs some
        patience = Patience(pause_s=0.1, max_pause_s=0.5, absent_s=1.5)
        monkeypatch.setattr("detok.rivals._PATIENCE", patience)
    record = LeaseRecord("rival", "n", 9000, has_presence=case != "of an earlier version")
    await table.write_lease(record, 0)
    await table.write_owner(2, PartitionOwner("rival", "n"), 0)
    holder = Holder(cluster, "a")
    async with AsyncExitStack() as stack:
        if case == "slow":
            await stack.enter_async_context(present(cluster.nc, cluster.subjects, "rival"))
        await stack.enter_async_context(holder.running())
        await eventually(lambda: holder.held == [0, 1, 3])
        if case == "back in time":
            await eventually(lambda: holder.share._watch._peers.num_absent == 1)
            await stack.enter_async_context(present(cluster.nc, cluster.subjects, "rival"))
        if case == "gone":
            await eventually(lambda: holder.held == [0, 1, 2, 3], timeout_s=8.0)
        else:
            await time_to_err(3.0)
            assert holder.held == [0, 1, 3]


async def test_nobody_is_gone_for_whom_was_away_itself(
    cluster: Cluster, table: OwnerTable, nats_server: NatsServer
) -> None:
    """All come back one by one."""
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)
        await cluster.nc.force_reconnect()
        await eventually(lambda: cluster.nc.stats["reconnects"] == 1)
        await eventually(lambda: not holder.share._watch.is_steady)
        tenure = next(each for each in holder.share.held if each.partition == 2)
        await table.write_lease(LeaseRecord("rival", "n", 9000, has_presence=True), 0)
        await table.write_owner(2, PartitionOwner("rival", "n"), tenure.revision)
        await eventually(lambda: 2 not in holder.held)
        await time_to_err(1.5)
        assert 2 not in holder.held
        await eventually(lambda: len(holder.held) == 4)


async def test_a_lease_says_whether_its_holder_can_be_heard(
    cluster: Cluster, table: OwnerTable
) -> None:
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.share._watch.has_presence)

        async def is_told() -> bool:
            leases = (await table.survey()).leases.values()
            return [lease.has_presence for lease in leases] == [True]

        await eventually_async(is_told)


async def test_who_may_not_listen_does_not_say_that_it_does(tmp_path: Path) -> None:
    """As the user of a detokenizer that was made for an earlier version."""
    users = """authorization { users: [ { user: old, password: p, permissions: {
        publish: ">", subscribe: { allow: ">", deny: "jf.here.>" } } } ] }"""
    server = NatsServer(tmp_path / "nats", config=users)
    server.start()
    settings = ClusterConfig(
        nats_url=server.url, nats_user="old", nats_password="p", num_partitions=4
    )
    try:
        async with open_cluster(settings, "test") as cluster:
            holder = Holder(cluster, "a")
            async with holder.running():
                await time_to_err(LEASE_PERIOD_S)
                table = OwnerTable(cluster.js, cluster.subjects)
                (lease,) = (await table.survey()).leases.values()
                assert not lease.has_presence
    finally:
        server.kill()


async def test_what_is_owned_without_a_lease_is_nobodys(
    cluster: Cluster, table: OwnerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_share, "_ORPHAN_S", 600.0)  # it waits for no rival to take it
    await table.write_owner(2, PartitionOwner("dead", "n"), 0)
    bucket = cluster.bucket(cluster.subjects.owners_bucket)
    await bucket.put("1", b"\xc1")
    await bucket.put("odd", b"\xc1")
    await bucket.put("lease-odd", b"\xc1")
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)


async def test_who_was_killed_is_shared_without_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill shall cost the lease's time, and not that of an orphan, too."""
    monkeypatch.setattr(partition_share, "_ORPHAN_S", 600.0)
    survivor, doomed = Holder(cluster, "a"), Holder(cluster, "b")
    async with survivor.running():
        async with doomed.running():
            await eventually(lambda: len(survivor.held) == len(doomed.held) == 2)
            doomed.is_killed = True
        await eventually(lambda: len(survivor.held) == 4)


async def test_a_partition_that_another_took_is_lost_and_not_taken_back(
    cluster: Cluster, table: OwnerTable
) -> None:
    await table.write_lease(LeaseRecord("thief", "t", 9000), 0)
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)
        (tenure,) = [each for each in holder.share.held if each.partition == 1]
        await table.write_owner(1, PartitionOwner("thief", "t"), tenure.revision)
        await eventually(lambda: holder.held == [0, 2, 3])
        await eventually(lambda: "-1" in holder.told)
        await time_to_err(0.5)
    assert await owners(cluster) == {"1": "thief"}


async def test_a_lease_that_another_ended_takes_everything_with_it(
    cluster: Cluster, table: OwnerTable
) -> None:
    """As a detokenizer that was stopped for long finds when it wakes up."""
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)
        lease = holder.share._keeper.lease
        old = list(holder.tenures)
        await table._bucket.put(f"lease-{lease.nonce}", b"")
        await eventually(lambda: len(holder.tenures) == 8)
        assert sorted(holder.told[4:8]) == ["-0", "-1", "-2", "-3"]
        assert not any(tenure.is_valid for tenure in old)
        assert all(tenure.is_valid for tenure in holder.share.held)


async def test_a_store_that_was_emptied_is_written_anew(
    cluster: Cluster, table: OwnerTable
) -> None:
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)
        await cluster.js.api(f"STREAM.PURGE.KV_{cluster.subjects.owners_bucket}")
        await eventually(lambda: len(holder.tenures) == 8)
        assert await owners(cluster) == dict.fromkeys("0123", "a")


async def test_two_that_wait_while_nothing_is_stored_take_nothing_from_each_other(
    cluster: Cluster, nats_server: NatsServer
) -> None:
    a, b = Holder(cluster, "a"), Holder(cluster, "b")
    async with a.running(), b.running():
        await eventually(lambda: len(a.held) == len(b.held) == 2)
        told = len(a.told), len(b.told)
        nats_server.pause()
        await eventually(lambda: not any(each.is_valid for each in a.share.held + b.share.held))
        await time_to_err(LEASE_PERIOD_S)
        nats_server.resume()
        await eventually(lambda: all(tenure.is_valid for tenure in a.share.held + b.share.held))
        assert (len(a.told), len(b.told)) == told
        assert min(a.num_valid, b.num_valid) >= 2


async def test_what_one_holder_had_is_freed(cluster: Cluster, table: OwnerTable) -> None:
    for name in ("dead", "living"):
        await table.write_lease(LeaseRecord(name, f"n-{name}", 1000), 0)
    for partition, name in enumerate(("dead", "living", "dead")):
        await table.write_owner(partition, PartitionOwner(name, f"n-{name}"), 0)
    await table.free_those_of("dead")
    survey = await table.survey()
    assert set(survey.leases) == {"n-living"}
    assert survey.ended == {"n-dead"}
    assert await owners(cluster) == {"1": "living"}
