"""Leases: one owner at a time, an even share, nothing orphaned, nothing taken from others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from detok import lease_keeper, live_detoks
from detok.lease_keeper import Lease, LeaseKeeper
from detok.live_detoks import ROLE
from shared.cluster import Cluster, open_cluster
from shared.codec import encode
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable
from shared.protocol.role_cards import RoleCard
from shared.streams import LEASE_TTL_S
from tests.detok.scripted import eventually, owners
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=4)
    async with open_cluster(config, "test") as cluster:
        yield cluster


class Holder:
    """A keeper, and what it told."""

    def __init__(self, cluster: Cluster, detok_id: str) -> None:
        self.id = detok_id
        self.told: list[str] = []
        self.is_killed = False  # it gives nothing back
        self.keeper = LeaseKeeper(
            cluster,
            detok_id,
            lambda lease: self.told.append(f"+{lease.partition}"),
            lambda lease: self.told.append(f"-{lease.partition}"),
        )
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)

    @property
    def held(self) -> list[int]:
        return sorted(lease.partition for lease in self.keeper.held)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Holder]:
        task = asyncio.create_task(self.keeper.run())
        beats = asyncio.create_task(self._beat())
        try:
            yield self
        finally:
            beats.cancel()
            if self.is_killed:
                task.cancel()
                await asyncio.wait([task])
            else:
                self.keeper.stop()
                await asyncio.wait_for(task, 5)

    async def _beat(self) -> None:
        while True:
            await self._roles.put(self.id, encode(RoleCard(self.id, ROLE)))
            await asyncio.sleep(0.3)


async def test_one_alone_takes_all_and_gives_all_back(cluster: Cluster) -> None:
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 2, 3])
        await asyncio.sleep(LEASE_TTL_S + 0.5)  # renewed all along
        assert holder.told == ["+0", "+1", "+2", "+3"]
        assert await owners(cluster) == dict.fromkeys("0123", "a")
    assert holder.told[4:] == ["-0", "-1", "-2", "-3"]
    assert await owners(cluster) == {}


async def test_three_share_evenly(cluster: Cluster) -> None:
    a, b, c = (Holder(cluster, name) for name in "abc")
    async with a.running(), b.running(), c.running():
        await eventually(lambda: sorted(a.held + b.held + c.held) == [0, 1, 2, 3])
        await eventually(lambda: max(len(a.held), len(b.held), len(c.held)) == 2)
        await eventually(lambda: sorted(a.held + b.held + c.held) == [0, 1, 2, 3])


async def test_what_one_gives_back_and_does_not_want_goes_to_the_other_for_good(
    cluster: Cluster,
) -> None:
    a, b = Holder(cluster, "a"), Holder(cluster, "b")
    async with a.running():
        await eventually(lambda: len(a.held) == 4)
        async with b.running():
            await eventually(lambda: len(b.held) == 2)
            a.keeper.stop()  # though its heartbeat goes on
            await eventually(lambda: len(b.held) == 4)
            await asyncio.sleep(3)
            assert not any(told.startswith("-") for told in b.told)


async def test_what_is_given_back_is_taken_in_milliseconds(cluster: Cluster) -> None:
    leases = cluster.bucket(cluster.subjects.leases_bucket)
    await leases.put("2", b"other")
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 3])
        waits: list[float] = []
        for _ in range(5):
            await asyncio.sleep(0.05)
            started = time.monotonic()
            await leases.put("2", b"")
            await eventually(lambda: 2 in holder.held)
            waits.append(time.monotonic() - started)
            await leases.put("2", b"other")
            await eventually(lambda: 2 not in holder.held)
        assert min(waits) < 0.1


async def test_a_lease_of_another_is_left_alone_until_it_expires(cluster: Cluster) -> None:
    leases = cluster.bucket(cluster.subjects.leases_bucket)
    await leases.put("2", b"dead")
    started = time.monotonic()
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: holder.held == [0, 1, 3])
        await eventually(lambda: holder.held == [0, 1, 2, 3])
    assert LEASE_TTL_S - 0.2 < time.monotonic() - started < LEASE_TTL_S + 1.5


async def test_who_lets_a_lease_expire_is_shared_without_before_its_heartbeat_is_old(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill shall cost the lease's time, and not that of the heartbeat, or of an orphan, too."""
    monkeypatch.setattr(lease_keeper, "_ORPHAN_S", 600.0)
    monkeypatch.setattr(live_detoks, "_STALE_S", 600.0)
    survivor, doomed = Holder(cluster, "a"), Holder(cluster, "b")
    async with survivor.running():
        async with doomed.running():
            await eventually(lambda: len(survivor.held) == len(doomed.held) == 2)
            doomed.is_killed = True
        await eventually(lambda: len(survivor.held) == 4)
        roles = cluster.bucket(cluster.subjects.roles_bucket)
        assert await roles.get("b") is not None, "not because its heartbeat was gone"


async def test_the_card_of_a_dead_one_keeps_nothing_from_the_living(cluster: Cluster) -> None:
    roles = cluster.bucket(cluster.subjects.roles_bucket)
    await roles.put("dead", encode(RoleCard("dead", ROLE)))
    await roles.put("frontend", encode(RoleCard("frontend", "frontend")))
    await roles.put("odd", b"\xc1")
    holder = Holder(cluster, "a")
    async with holder.running():
        started = time.monotonic()
        await eventually(lambda: len(holder.held) == 4)
        assert time.monotonic() - started < 0.8


async def test_a_lease_that_another_took_is_lost_and_not_taken_back(cluster: Cluster) -> None:
    leases = cluster.bucket(cluster.subjects.leases_bucket)
    holder = Holder(cluster, "a")
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4)
        await leases.put("1", b"thief")
        await eventually(lambda: holder.held == [0, 2, 3])
        # The wake-up of a detokenizer that lost a lease while it was stopped.
        await asyncio.sleep(0.5)
    assert "-1" in holder.told
    entry = await leases.get("1")
    assert entry is not None
    assert entry.value == b"thief"


async def test_a_renewal_whose_answer_was_lost_is_found_again(cluster: Cluster) -> None:
    holder = Holder(cluster, "a")
    bucket = holder.keeper._bucket
    real_put_if = bucket.put_if
    num_lost = 0

    async def put_if(key: str, value: bytes, revision: int) -> int:
        nonlocal num_lost
        stored = await real_put_if(key, value, revision)
        if num_lost < 6:
            num_lost += 1
            raise BrokerUnavailable("no answer")
        return stored

    bucket.put_if = put_if  # type: ignore[method-assign]
    async with holder.running():
        await eventually(lambda: len(holder.held) == 4 and num_lost == 6)
        await asyncio.sleep(LEASE_TTL_S + 0.5)
        assert len(holder.held) == 4
        assert not any(told.startswith("-") for told in holder.told)


def test_a_lease_ends_by_the_clock() -> None:
    assert Lease(0, 1, time.monotonic() + 1).is_valid
    assert not Lease(0, 1, time.monotonic() - 0.001).is_valid
    assert not Lease(0, 1, time.monotonic() + LEASE_TTL_S).is_due
    assert Lease(0, 1, time.monotonic() + LEASE_TTL_S - 0.6).is_due
