"""What a scaler sees of a real queue, and that two of them take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deploy.scaling.pool_snapshot import PoolSnapshot
from deploy.scaling.pool_watch import PoolWatch
from deploy.scaling.scaler import Turn
from deploy.scaling.service_sides import ServiceSides
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.protocol.codec import encode
from shared.protocol.role_cards import WorkDone, WorkerCard, WorkerState
from shared.storage.streams import ensure_consumers
from shared.subjects import new_rid
from tests.eventually import eventually_async
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

POOL = "demo-1"


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        await ensure_consumers(cluster.js, cluster.subjects, POOL, ack_wait_s=60)
        yield cluster


async def put_card(cluster: Cluster, worker: str, state: WorkerState, **fields: object) -> None:
    card = WorkerCard(worker, POOL, "demo", "r", state, **fields)  # type: ignore[arg-type]
    await cluster.bucket(cluster.subjects.workers_bucket).put(f"{POOL}.{worker}", encode(card))


async def pull(cluster: Cluster, count: int) -> None:
    """As a worker does; nothing is acknowledged."""
    consumer = await cluster.nc.jetstream().pull_subscribe_bind(
        cluster.subjects.consumers(POOL)[0], cluster.subjects.requests_stream
    )
    assert len(await consumer.fetch(count, timeout=10)) == count


async def seen_by(watch: PoolWatch, *own: str) -> PoolSnapshot:
    view = await watch.look(dict.fromkeys(own, "both"), set())
    return view.snapshots["both"]


async def test_what_waits_and_runs_is_counted_over_all_consumers(cluster: Cluster) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    nothing = await seen_by(watch)
    assert (nothing.num_waiting, nothing.num_running, nothing.oldest_wait_s) == (0, 0, 0.0)
    assert nothing.max_running == 7
    for job_class in ("interactive", "interactive", "interactive", "batch"):
        await cluster.js.publish(cluster.subjects.request(POOL, job_class, "", new_rid()), b"x")
    await pull(cluster, 2)

    async def once_they_have_waited() -> PoolSnapshot | None:
        seen = await seen_by(watch)
        return seen if seen.oldest_wait_s >= 0.3 else None

    seen = await eventually_async(once_they_have_waited)
    assert (seen.num_waiting, seen.num_running) == (2, 2)
    assert seen.num_arrived - nothing.num_arrived == 4
    assert seen.oldest_wait_s < 30


async def test_a_second_delivery_is_no_arrival(cluster: Cluster) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    await put_card(cluster, "a", WorkerState.READY)
    before = await seen_by(watch)
    await cluster.js.publish(cluster.subjects.request(POOL, "interactive", "", new_rid()), b"x")
    consumer = await cluster.nc.jetstream().pull_subscribe_bind(
        cluster.subjects.consumers(POOL)[0], cluster.subjects.requests_stream
    )
    for _ in range(3):
        [message] = await consumer.fetch(1, timeout=10)
        await message.nak()
    await put_card(cluster, "a", WorkerState.READY, work=WorkDone(num_redelivered=2))
    after = await seen_by(watch)
    assert after.num_arrived - before.num_arrived == 1


async def test_workers_are_told_apart_by_what_they_do_and_whose_they_are(cluster: Cluster) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    await put_card(cluster, "ours", WorkerState.READY, num_running=2, num_waiting=1, max_running=9)
    await put_card(cluster, "ours-leaving", WorkerState.READY)
    await put_card(cluster, "theirs", WorkerState.READY)
    await put_card(cluster, "theirs-loading", WorkerState.LOADING)
    await put_card(cluster, "theirs-draining", WorkerState.DRAINING)
    await cluster.bucket(cluster.subjects.workers_bucket).put(f"{POOL}.garbage", b"garbage")
    view = await watch.look({"ours": "both", "ours-launched": "both"}, {"ours-leaving"})
    seen = view.snapshots["both"]
    assert (seen.num_ready, seen.num_starting, seen.num_others) == (2, 2, 2)
    assert seen.max_running == 9
    assert view.loads == {"ours": 3, "theirs": 0}
    assert not view.is_paused
    await put_card(cluster, "theirs", WorkerState.PAUSED)
    assert (await watch.look({"ours": "both"}, set())).is_paused


async def test_work_is_summed_over_workers_that_come_and_go(cluster: Cluster) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    await put_card(cluster, "a", WorkerState.READY, work=WorkDone(1000, 10, 900))
    first = await seen_by(watch)
    await put_card(cluster, "a", WorkerState.READY, work=WorkDone(1100, 11, 980))
    await put_card(cluster, "b", WorkerState.READY, work=WorkDone(50, 1, 30))
    second = await seen_by(watch)
    assert second.num_tokens - first.num_tokens == 150
    assert second.num_finished - first.num_finished == 2
    assert second.num_finished_tokens - first.num_finished_tokens == 110
    await cluster.bucket(cluster.subjects.workers_bucket).delete(f"{POOL}.a")
    third = await seen_by(watch)
    assert third.num_tokens == second.num_tokens


async def test_the_time_of_a_start_is_measured(cluster: Cluster) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    assert (await seen_by(watch, "a")).start_s == 0.0

    async def takes_long() -> bool:
        return (await seen_by(watch, "a")).start_s >= 0.3

    await eventually_async(takes_long)
    await put_card(cluster, "a", WorkerState.READY)
    measured = (await seen_by(watch, "a")).start_s
    assert 0.3 <= measured < 30
    assert (await seen_by(watch, "a")).start_s == measured


async def test_without_a_broker_there_is_nothing_to_see(
    cluster: Cluster, nats_server: NatsServer
) -> None:
    watch = PoolWatch(ServiceSides(cluster), POOL, max_running=7)
    nats_server.kill()
    with pytest.raises(BrokerError):
        await seen_by(watch)


async def test_turns(cluster: Cluster) -> None:
    bucket = cluster.bucket(cluster.subjects.turns_bucket)
    first, second = Turn(bucket, POOL, "first"), Turn(bucket, POOL, "second")
    other_pool = Turn(bucket, "other", "second")
    other_role = Turn(bucket, POOL, "second", "decode")
    assert await first.take()
    assert await first.take(), "as often as it likes"
    assert not await second.take()
    assert await other_pool.take()
    assert await other_role.take()
    await eventually_async(second.take, 30)  # the server lets it expire
    assert not await first.take()
