"""The ordered reader: each message once and in order, whatever happens to its consumers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from shared.broker.jetstream import JetStream, StoredMessage
from shared.broker.log_reader import LogReader
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@dataclass
class Reading:
    """What a reader delivered."""

    messages: list[tuple[str, int, bytes]] = field(default_factory=list)
    num_caught_up: int = 0

    @property
    def bodies(self) -> list[bytes]:
        return [data for _, _, data in self.messages]

    def on_caught_up(self) -> None:
        self.num_caught_up += 1


@asynccontextmanager
async def reading(
    cluster: Cluster,
    reading: Reading,
    start_seq: int = 1,
    filters: list[str] | None = None,
    js: JetStream | None = None,
) -> AsyncIterator[LogReader]:
    reader = LogReader(
        js or cluster.js,
        cluster.subjects.tokens_stream,
        filters or ["jf.tok.0.*"],
        start_seq,
        lambda subject, seq, data: reading.messages.append((subject, seq, data)),
        reading.on_caught_up,
    )
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.wait([task])


async def publish(cluster: Cluster, first: int, last: int, subject: str = "jf.tok.0.w") -> None:
    for i in range(first, last + 1):
        await cluster.js.publish(subject, b"%d" % i)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last + 1)]


async def test_reads_what_is_there_and_what_comes(cluster: Cluster) -> None:
    await publish(cluster, 1, 5)
    await publish(cluster, 99, 99, subject="jf.tok.1.w")
    seen = Reading()
    async with reading(cluster, seen) as reader:
        await eventually(lambda: len(seen.messages) == 5 and seen.num_caught_up == 1)
        await publish(cluster, 6, 8)
        await eventually(lambda: len(seen.messages) == 8)
        assert reader.next_seq == 10
        assert reader.num_pending == 0
    assert seen.bodies == numbers(1, 8)
    assert [seq for _, seq, _ in seen.messages] == [1, 2, 3, 4, 5, 7, 8, 9]


async def test_starts_at_a_sequence_and_merges_subjects_in_stream_order(cluster: Cluster) -> None:
    for i in range(1, 7):
        await publish(cluster, i, i, subject=f"jf.tok.0.w{i % 2}")
    seen = Reading()
    async with reading(cluster, seen, 3, ["jf.tok.0.w1", "jf.tok.0.w0"]):
        await eventually(lambda: len(seen.messages) == 4)
    assert seen.bodies == numbers(3, 6)


async def test_an_empty_log_is_caught_up_at_once(cluster: Cluster) -> None:
    seen = Reading()
    async with reading(cluster, seen):
        await eventually(lambda: seen.num_caught_up == 1)


class LeaderAhead(JetStream):
    """Asked for the last message, it knows of one more than the replica that is read."""

    num_ahead = 1

    async def get_last(self, stream: str, subject: str) -> StoredMessage | None:
        last = await super().get_last(stream, subject)
        return last and msgspec.structs.replace(last, seq=last.seq + self.num_ahead)


async def test_a_replica_that_lags_is_not_the_end_of_the_log(cluster: Cluster) -> None:
    await publish(cluster, 1, 5)
    seen = Reading()
    leader = LeaderAhead(cluster.nc)
    async with reading(cluster, seen, js=leader):
        await eventually(lambda: len(seen.messages) == 5)
        await time_to_err(0.5)
        assert seen.num_caught_up == 0
        leader.num_ahead = 0  # the message that was waited for is gone
        await eventually(lambda: seen.num_caught_up > 0)


async def test_a_scan_of_a_replica_that_lags_proves_nothing(cluster: Cluster) -> None:
    await publish(cluster, 1, 5)
    stream = cluster.subjects.tokens_stream
    found = [one.data async for one in cluster.js.proven_scan(stream, "jf.tok.0.*")]
    assert found == numbers(1, 5)
    with pytest.raises(BrokerUnavailable, match="lags behind"):
        [one async for one in LeaderAhead(cluster.nc).proven_scan(stream, "jf.tok.0.*")]
    assert [one async for one in cluster.js.proven_scan(stream, "jf.tok.9.*")] == []


async def test_a_long_backlog_leaves_the_loop_to_others(cluster: Cluster) -> None:
    for i in range(1, 5000):
        await cluster.nc.publish("jf.tok.0.w", b"%d" % i)
    await publish(cluster, 5000, 5000)
    seen = Reading()
    turns_at: list[int] = []

    async def other_work() -> None:
        while True:
            turns_at.append(len(seen.messages))
            await asyncio.sleep(0)

    async with reading(cluster, seen):
        task = asyncio.create_task(other_work())
        await eventually(lambda: len(seen.messages) == 5000)
        task.cancel()
    assert seen.bodies == numbers(1, 5000)
    longest = max(b - a for a, b in itertools.pairwise(turns_at))
    assert longest <= 64


async def test_a_broker_restart_loses_and_repeats_nothing(
    cluster: Cluster, nats_server: NatsServer
) -> None:
    await publish(cluster, 1, 50)
    seen = Reading()
    async with reading(cluster, seen):
        await eventually(lambda: len(seen.messages) == 50)
        nats_server.kill()
        nats_server.start()
        await eventually(lambda: cluster.nc.stats["reconnects"] == 1)
        await publish(cluster, 51, 100)
        await eventually(lambda: len(seen.messages) >= 100)
        await time_to_err(0.3)
    assert seen.bodies == numbers(1, 100)


async def test_a_lost_delivery_is_read_again(cluster: Cluster) -> None:
    seen = Reading()
    async with reading(cluster, seen) as reader:
        await publish(cluster, 1, 3)
        await eventually(lambda: len(seen.messages) == 3)
        reader._consumer_seq -= 1  # as if the third had never arrived
        reader.next_seq = 3
        seen.messages.pop()
        await publish(cluster, 4, 6)
        await eventually(lambda: len(seen.messages) == 6)
    assert seen.bodies == numbers(1, 6)


async def test_a_lost_last_delivery_shows_in_the_heartbeat(cluster: Cluster) -> None:
    seen = Reading()
    async with reading(cluster, seen) as reader:
        await publish(cluster, 1, 3)
        await eventually(lambda: len(seen.messages) == 3)
        reader._consumer_seq -= 1
        reader.next_seq = 3
        seen.messages.pop()
        await eventually(lambda: len(seen.messages) == 3)
    assert seen.bodies == numbers(1, 3)


async def test_a_consumer_that_vanishes_is_made_again(cluster: Cluster) -> None:
    seen = Reading()
    async with reading(cluster, seen) as reader:
        await publish(cluster, 1, 3)
        await eventually(lambda: len(seen.messages) == 3)
        stream = cluster.subjects.tokens_stream
        await cluster.js.api(f"CONSUMER.DELETE.{stream}.{reader._consumer}")
        await publish(cluster, 4, 6)
        await eventually(lambda: len(seen.messages) == 6)
    assert seen.bodies == numbers(1, 6)


async def test_a_consumer_whose_creation_was_not_heard_of_does_no_harm(cluster: Cluster) -> None:
    await publish(cluster, 1, 20)
    seen = Reading()
    reader = LogReader(
        cluster.js,
        cluster.subjects.tokens_stream,
        ["jf.tok.0.*"],
        1,
        lambda subject, seq, data: seen.messages.append((subject, seq, data)),
    )
    real_api = reader._js.api
    attempts = 0

    async def api(operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        nonlocal attempts
        attempts += 1
        answer = await real_api(operation, body)
        if attempts <= 2:
            raise BrokerUnavailable("no answer")
        return answer

    reader._js.api = api  # type: ignore[method-assign]
    task = asyncio.create_task(reader.run())
    await eventually(lambda: attempts == 3 and len(seen.messages) >= 20)
    await publish(cluster, 21, 30)
    await eventually(lambda: len(seen.messages) >= 30)
    await time_to_err(0.5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen.bodies == numbers(1, 30)
    assert attempts == 4  # two in vain, one, and the deletion: no restart in between


async def test_closing_removes_the_consumer(cluster: Cluster) -> None:
    seen = Reading()
    async with reading(cluster, seen):
        await eventually(lambda: seen.num_caught_up == 1)
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.tokens_stream}")
    assert info["state"]["consumer_count"] == 0
