"""A lease: counted from when it was asked for, found again, renewed late, ended by others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.chaos.tcp_proxy import Side, TcpProxy
from detok.lease import Lease, LeaseKeeper, Link, RenewalPace, Tenure
from detok.owner_table import LONGEST_PERIOD_S, OwnerTable
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable
from shared.protocol.leases import LeaseRecord
from shared.storage.streams import LEASE_PERIOD_S
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


class HinderedTable(OwnerTable):
    """A table whose writes of leases are answered late, lost after they are stored, or refused."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.js, cluster.subjects)
        self.late_s = 0.0
        self.num_answers_to_lose = 0
        self.is_away = False
        self.asked_at: list[float] = []

    async def write_lease(self, record: LeaseRecord, revision: int) -> int:
        self.asked_at.append(time.monotonic())
        if self.is_away:
            raise BrokerUnavailable("away")
        stored = await super().write_lease(record, revision)
        await asyncio.sleep(self.late_s)
        if self.num_answers_to_lose:
            self.num_answers_to_lose -= 1
            raise BrokerUnavailable("no answer")
        return stored


class Holder:
    """A keeper, and what it told."""

    def __init__(self, cluster: Cluster) -> None:
        self.table = HinderedTable(cluster)
        self.num_valid = self.num_ended = 0
        link = Link(cluster.nc)
        self.keeper = LeaseKeeper(self.table, link, "detok-a", self._on_valid, self._on_ended)
        cluster.reconnects.follow(self.keeper.on_reconnect)

    def _on_valid(self) -> None:
        self.num_valid += 1

    def _on_ended(self) -> None:
        self.num_ended += 1

    @property
    def is_valid(self) -> bool:
        return self.keeper.lease.is_valid

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Holder]:
        task = asyncio.create_task(self.keeper.run())
        try:
            await eventually(lambda: self.is_valid)
            yield self
        finally:
            self.keeper.stop()
            await asyncio.wait_for(task, LONGEST_PERIOD_S + 1)


@pytest.mark.timed
async def test_it_stays_valid_and_is_removed_when_given_back(cluster: Cluster) -> None:
    holder = Holder(cluster)
    async with holder.running():
        nonce = holder.keeper.lease.nonce
        await time_to_err(2 * LEASE_PERIOD_S)
        assert (holder.num_valid, holder.num_ended) == (1, 0)
        seen = await holder.table.lease(nonce)
        assert seen is not None
        assert (seen.holder, seen.period_s) == ("detok-a", LEASE_PERIOD_S)
    await holder.keeper.give_back()
    assert not holder.is_valid
    assert await holder.table.lease(nonce) is None


async def test_it_counts_from_when_it_was_asked_for(cluster: Cluster) -> None:
    """A rival may have seen it as early as that."""
    holder = Holder(cluster)
    holder.table.late_s = 0.5
    async with holder.running():
        assert holder.keeper.lease.valid_until == pytest.approx(
            holder.table.asked_at[0] + LEASE_PERIOD_S, abs=0.25
        )


async def test_a_shorter_period_counts_from_when_rivals_may_see_it(cluster: Cluster) -> None:
    holder = Holder(cluster)
    holder.keeper._pace.note(2.0)
    async with holder.running():
        holder.keeper._pace._slowest_s = 0.0
        holder.table.num_answers_to_lose = 1
        holder.keeper._due_at = 0.0
        await holder.keeper._renew()
        assert holder.keeper.lease.valid_until <= holder.table.asked_at[-1] + LEASE_PERIOD_S


async def test_a_renewal_whose_answer_was_lost_is_found_again(cluster: Cluster) -> None:
    holder = Holder(cluster)
    async with holder.running():
        holder.table.num_answers_to_lose = 6
        await eventually(lambda: holder.table.num_answers_to_lose == 0)
        await eventually(lambda: holder.is_valid)
        assert holder.num_ended == 0


async def test_what_was_renewed_after_its_end_is_as_good_as_before(cluster: Cluster) -> None:
    holder = Holder(cluster)
    async with holder.running():
        nonce = holder.keeper.lease.nonce
        holder.table.is_away = True
        await eventually(lambda: not holder.is_valid)
        holder.table.is_away = False
        await eventually(lambda: holder.is_valid)
        assert (holder.num_valid, holder.num_ended) == (2, 0)
        assert holder.keeper.lease.nonce == nonce


async def test_it_is_not_valid_without_its_connection_and_renewed_on_the_next(
    nats_server: NatsServer,
) -> None:
    """Rivals that see nobody behind it need not wait for its period."""
    async with TcpProxy(nats_server.port) as proxy:
        url = f"nats://127.0.0.1:{proxy.port}"
        async with open_cluster(ClusterConfig(nats_url=url), "test") as cluster:
            holder = Holder(cluster)
            async with holder.running():
                nonce = holder.keeper.lease.nonce
                proxy.hold(*Side)  # the next connection is not there before we have looked
                proxy.cut()
                await eventually(lambda: not holder.is_valid)
                assert time.monotonic() < holder.keeper.lease.valid_until
                proxy.release(*Side)
                await eventually(lambda: holder.is_valid)
                assert (holder.num_valid, holder.num_ended) == (2, 0)
                assert holder.keeper.lease.nonce == nonce
                assert holder.keeper.lease.renewed_on == cluster.nc.stats["reconnects"] > 0


async def test_no_answer_is_waited_for_on_a_connection_that_is_gone(cluster: Cluster) -> None:
    holder = Holder(cluster)
    async with holder.running():
        holder.table.late_s = 60.0
        num_asked = len(holder.table.asked_at)
        await eventually(lambda: len(holder.table.asked_at) > num_asked)
        holder.table.late_s = 0.0
        await cluster.reconnects.notify()
        await eventually(lambda: len(holder.table.asked_at) > num_asked + 1)
        assert holder.table.asked_at[-1] - holder.table.asked_at[-2] < LEASE_PERIOD_S


async def test_what_another_has_ended_is_not_renewed(cluster: Cluster) -> None:
    holder = Holder(cluster)
    async with holder.running():
        old = holder.keeper.lease
        holder.table.is_away = True
        await eventually(lambda: not holder.is_valid)
        await holder.table.end_lease(old.nonce, old.revision)
        holder.table.is_away = False
        await eventually(lambda: holder.is_valid)
        assert holder.num_ended == 1
        assert holder.keeper.lease.nonce != old.nonce
        assert not old.is_valid
        assert await holder.table.lease(old.nonce) is None


@pytest.mark.timed
async def test_a_slow_link_makes_the_period_longer(cluster: Cluster) -> None:
    holder = Holder(cluster)
    holder.table.late_s = 1.0
    async with holder.running():
        await time_to_err(2.0)
        for _ in range(20):
            await time_to_err(0.1)
            assert holder.is_valid
        holder.table.late_s = 0.0


async def test_who_is_alone_renews_less_until_a_rival_comes(cluster: Cluster) -> None:
    holder = Holder(cluster)

    def is_promised(period_s: float) -> bool:
        left_s = holder.keeper.lease.valid_until - holder.table.asked_at[-1]
        return left_s == pytest.approx(period_s, abs=0.2)

    async with holder.running():
        holder.keeper.note_rivals(is_alone=True)
        await eventually(lambda: is_promised(3.0))
        num_asked = len(holder.table.asked_at)
        holder.keeper.note_rivals(is_alone=False)
        await eventually(lambda: is_promised(LEASE_PERIOD_S), 0.5)
        assert len(holder.table.asked_at) == num_asked + 1


def test_a_pace_calms_down() -> None:
    pace = RenewalPace()
    assert pace.period_s == LEASE_PERIOD_S
    pace.note(1.0)
    assert pace.period_s == 3.0
    pace.note(100.0)
    assert pace.period_s == LONGEST_PERIOD_S
    for _ in range(40):
        pace.note(0.01)
    assert pace.period_s == LEASE_PERIOD_S


async def test_a_tenure_ends_with_its_lease_or_before(cluster: Cluster) -> None:
    lease = Lease("n", Link(cluster.nc), 1, time.monotonic() + 1)
    first, second = Tenure(0, lease, 2), Tenure(1, lease, 3, is_over=True)
    assert first.is_valid
    assert not second.is_valid
    lease.end()
    assert not first.is_valid
