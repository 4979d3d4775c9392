"""Storing and deleting on three servers whose leaders die: what was stored is there and whole, what
was deleted is gone, and of who confirms and who deletes one sees the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from shared.broker.jetstream import JetStream
from shared.broker.objects import Objects
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, NotFound
from shared.subjects import new_rid
from tests.eventually import Looks, eventually_async
from tests.nats_cluster import ClusteredServer, NatsCluster
from tests.stream_leaders import make_lead

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

PIECE = 128 * 1024
STREAM = "OBJ_jf_objects"
NUM_KILLS = 2
NUM_OWNERS = 2
NUM_RIVALS = 4
NUM_ROUNDS = 3  # of each, with a server away
NUM_PURGES = 300
NUM_PIECES = 4
MAX_LATE_S = 0.004  # an erasure is over by then
PATIENCE_S = 90.0

T = TypeVar("T")


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Asked again while servers choose a leader."""
    async for _ in (looks := Looks(PATIENCE_S, longest_pause_s=0.1)):
        with contextlib.suppress(BrokerError):
            return await call()
    raise looks.error


async def outcome(call: Awaitable[bool]) -> bool | None:
    """None: nobody has told."""
    try:
        return await call
    except BrokerError:
        return None


class Client:
    """Works on one object, round after round."""

    def __init__(self, objects: Objects, name: str) -> None:
        self.objects = objects
        self.name = name
        self.content: bytes | None = None  # that it must have; None: it must be gone
        self.num_rounds = 0
        self.is_over = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.is_over:
                return
            await self._round(number)
            self.num_rounds += 1

    async def _round(self, number: int) -> None:
        raise NotImplementedError

    async def _put(self, content: bytes) -> None:
        await answered(lambda: self.objects.put(self.name, content))
        self.content = content

    async def check(self) -> None:
        """By the leader's word, and in time by that of every replica."""
        entry = await answered(lambda: self.objects.find(self.name))
        assert (entry is None) == (self.content is None), self.name

        async def is_as_it_must_be() -> bool:
            try:
                return await answered(lambda: self.objects.get(self.name)) == self.content
            except NotFound:
                return self.content is None

        await eventually_async(is_as_it_must_be, PATIENCE_S)


class Owner(Client):
    """Stores, replaces and deletes what nobody else touches."""

    async def _round(self, number: int) -> None:
        await self._put(b"%d" % number + b"x" * (number % 3 * PIECE))
        await self.check()
        if number % 2:
            await answered(lambda: self.objects.delete(self.name))
            self.content = None
            await self.check()


class Rivals(Client):
    """One confirms, the other deletes what he has seen."""

    async def _round(self, number: int) -> None:
        await self._put(b"%d" % number)
        seen = await answered(lambda: self.objects.find(self.name))
        assert seen is not None
        is_confirmed, is_deleted = await asyncio.gather(
            outcome(self.objects.confirm(seen)), outcome(self.objects.delete_unchanged(seen))
        )
        assert not (is_confirmed and is_deleted), f"round {number} of {self.name}"
        if is_deleted or (not is_confirmed and await self._is_gone()):
            self.content = None
        await self.check()

    async def _is_gone(self) -> bool:
        return await answered(lambda: self.objects.find(self.name)) is None


async def leader_of(cluster: Cluster, nats: NatsCluster) -> ClusteredServer:
    info = await answered(lambda: cluster.js.api(f"STREAM.INFO.{STREAM}"))
    return nats.named(info["cluster"]["leader"])


async def num_messages(cluster: Cluster) -> int:
    info = await answered(lambda: cluster.js.api(f"STREAM.INFO.{STREAM}"))
    return int(info["state"]["messages"])


def num_wanted(clients: list[Client]) -> int:
    """A name, and pieces."""
    contents = [client.content for client in clients if client.content is not None]
    return sum(1 + -(-len(content) // PIECE) for content in contents)


@pytest.mark.nightly
async def test_leaders_die_and_no_object_is_lost_or_left(nats: NatsCluster) -> None:
    config = ClusterConfig(nats_url=nats.url, replicas=3, nats_connect_timeout_s=60)
    async with open_cluster(config, "test") as cluster:
        objects = cluster.objects(cluster.subjects.objects_bucket)
        clients: list[Client] = [Owner(objects, f"own-{idx}") for idx in range(NUM_OWNERS)]
        clients += [Rivals(objects, f"file-{idx}") for idx in range(NUM_RIVALS)]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.run())
            for _ in range(NUM_KILLS):
                killed = await leader_of(cluster, nats)
                killed.kill()
                await until_all_have_gone_on(clients)
                await asyncio.to_thread(nats.start)
            for client in clients:
                client.is_over = True
        for piece_id in await answered(lambda: objects.nameless(0.0)):
            await answered(lambda piece_id=piece_id: objects.erase_pieces(piece_id))  # type: ignore[misc]
        for server in nats.servers:
            await make_lead(cluster.js, STREAM, server.name, PATIENCE_S)
            for client in clients:
                await client.check()
            assert await num_messages(cluster) == num_wanted(clients), server.name
        print(*(f"{client.name}: {client.num_rounds} rounds" for client in clients))


async def write_behind(js: JetStream, subject: str, seq: int) -> bool:
    """A result in pieces, each behind the one before it."""
    for _ in range(NUM_PIECES):
        seq = (await js.publish(subject, b"piece", expected_last=seq)).seq
    return True


async def test_nothing_is_stored_behind_what_was_purged(nats: NatsCluster) -> None:
    """Such as the result of a response that is deleted in this moment."""
    config = ClusterConfig(nats_url=nats.url, replicas=3, nats_connect_timeout_s=60)
    async with open_cluster(config, "test") as cluster:
        js, stream = cluster.js, cluster.subjects.responses_stream
        for _ in range(NUM_PURGES):
            subject = cluster.subjects.response(new_rid())
            record = await js.publish(subject, b"record", expected_last=0)
            await asyncio.gather(
                outcome(write_behind(js, subject, record.seq)), js.purge_for_good(stream, subject)
            )
            assert await js.get_last(stream, subject) is None


@pytest.mark.nightly
async def test_nothing_is_stored_behind_what_was_erased(nats: NatsCluster) -> None:
    config = ClusterConfig(nats_url=nats.url, replicas=3, nats_connect_timeout_s=60)
    async with open_cluster(config, "test") as cluster:
        js, stream = cluster.js, cluster.subjects.responses_stream
        for number in range(NUM_PURGES):
            subject = cluster.subjects.response(new_rid())
            record = await js.publish(subject, b"record", expected_last=0)
            erased = asyncio.create_task(js.erase(stream, subject))
            await asyncio.sleep(number / NUM_PURGES * MAX_LATE_S)
            await outcome(write_behind(js, subject, record.seq))
            await erased
            assert await js.get_last(stream, subject) is None, number


async def until_all_have_gone_on(clients: list[Client]) -> None:
    wanted = [client.num_rounds + NUM_ROUNDS for client in clients]

    async def have_gone_on() -> bool:
        return all(
            client.num_rounds >= rounds for client, rounds in zip(clients, wanted, strict=True)
        )

    await eventually_async(have_gone_on, PATIENCE_S)
