"""Which frontends read a request, as KV tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from frontend.inference.answers.attachments import Attachments
from frontend.jobs.job import Caller
from frontend.streams.generation import Generation
from shared.broker.kv_bucket import KvBucket
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.request import Readers
from shared.subjects import new_rid
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@pytest.fixture
def bucket(cluster: Cluster) -> KvBucket:
    return cluster.bucket(cluster.subjects.attached_bucket)


def make_reply(rid: str, *, is_shared: bool = False) -> ReplyParams:
    subject = "jf.out.a"
    return ReplyParams(subject, Surface.CHAT, "m", 1, 3, rid, frontend_id="a", is_shared=is_shared)


async def test_garbage_is_no_entry(bucket: KvBucket) -> None:
    """Whoever sweeps a dead frontend's requests reads it, and goes on."""
    rid = new_rid()
    await bucket.put(rid, b"\xc1garbage")
    assert await Attachments(bucket, "a").leave(rid, make_reply(rid))
    assert await Attachments(bucket, "b").join(rid, make_reply(rid)) is None


@pytest.mark.parametrize("is_shared", [False, True])
async def test_who_is_last_to_leave_ends_it_and_nobody_joins_any_more(
    bucket: KvBucket, is_shared: bool
) -> None:
    rid = new_rid()
    reply = make_reply(rid, is_shared=is_shared)
    assert await Attachments(bucket, "a").leave(rid, reply)
    assert await Attachments(bucket, "b").join(rid, reply) is None


async def test_joining_and_leaving_at_once_is_told_to_one_of_them(bucket: KvBucket) -> None:
    """Also of a stream without a key: a client comes back just when its frontend is swept."""
    for _ in range(20):
        rid = new_rid()
        reply = make_reply(rid)
        joined, left = await asyncio.gather(
            Attachments(bucket, "b").join(rid, reply),
            Attachments(bucket, "c").leave(rid, reply, "a"),
            return_exceptions=True,
        )
        if left is True:
            assert joined is None, "it is being ended"
        else:
            assert isinstance(left, CasConflict) or left is False
            assert joined == Readers(("a",))


async def test_marks_tell_what_a_frontend_has_joined(bucket: KvBucket) -> None:
    rids = [new_rid() for _ in range(3)]
    joiner, other = Attachments(bucket, "b"), Attachments(bucket, "c")
    for attachments in (joiner, other):
        await attachments.register()
    for rid in rids[:2]:
        await joiner.join(rid, make_reply(rid))
    await other.join(rids[2], make_reply(rids[2]))
    await Attachments(bucket, "a").join(rids[0], make_reply(rids[0]))  # its own
    assert await joiner.joined_by("b") == rids[:2]
    assert await joiner.joined_by("a") == []
    assert sorted(await joiner.frontends()) == ["b", "c"]
    await joiner.forget("b")
    assert (await joiner.frontends(), await joiner.joined_by("b")) == (["c"], [])
    assert await joiner.joined_by("c") == [rids[2]]


async def test_a_refused_client_leaves_the_stream_to_its_reader(bucket: KvBucket) -> None:
    rid = new_rid()
    reply, joiner = make_reply(rid), Attachments(bucket, "b")
    before = await joiner.join(rid, reply)
    assert before is not None
    await joiner._undo(rid, reply, before)
    entry = await bucket.get(rid)
    assert entry is not None
    assert decode(Readers, entry.value) == Readers(("a",))
    await bucket.put(rid, encode(Readers(("a", "c", "b"))))
    await joiner._undo(rid, make_reply(rid, is_shared=True), Readers(("a",)))
    entry = await bucket.get(rid)
    assert entry is not None
    assert decode(Readers, entry.value) == Readers(("a", "c"))


class FullBucket(KvBucket):
    """Takes no entry of one key."""

    full_key = ""

    async def put_if(self, key: str, value: bytes, revision: int) -> int:
        if key == self.full_key:
            raise BrokerError("the bucket is full")
        return await super().put_if(key, value, revision)


def make_generation(replies: list[tuple[str, ReplyParams]]) -> Generation:
    return Generation.of(
        replies,
        Caller(),
        pool="m",
        arrived_at=0.0,
        remaining_s=60.0,
        queue_timeout_s=0.0,
        token_texts=None,
    )


async def test_a_stream_of_many_requests_is_joined_whole_or_not_at_all(
    cluster: Cluster, bucket: KvBucket
) -> None:
    replies = [(rid, make_reply(rid)) for rid in (new_rid() for _ in range(3))]
    full = FullBucket(cluster.js, cluster.subjects.attached_bucket)
    full.full_key = replies[1][0]
    with pytest.raises(ServiceUnavailable):
        await Attachments(full, "b").join_all(make_generation(replies))
    for rid, reply in replies:
        assert await Attachments(bucket, "a").leave(rid, reply), "its reader is the last one"


async def test_a_request_that_cannot_be_given_back_keeps_no_other_one(
    cluster: Cluster, bucket: KvBucket
) -> None:
    replies = [(rid, make_reply(rid)) for rid in (new_rid() for _ in range(3))]
    generation = make_generation(replies)
    full = FullBucket(cluster.js, cluster.subjects.attached_bucket)
    attachments = Attachments(full, "b")
    joined = await attachments.join_all(generation)
    full.full_key = replies[0][0]
    await attachments.undo(generation, joined)
    left = [await Attachments(bucket, "a").leave(rid, reply) for rid, reply in replies]
    assert left == [False, True, True], "of all others its reader is the last one"
