"""Writers use what is in force; who knows less than that ends nothing, and leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from shared.admin.dead_requests import DeadRequests, NotKept, StoredDead
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import CasConflict, ConfigError, OutdatedBuild, WrittenByNewer
from shared.liveness.living_levels import LevelOrder
from shared.protocol.codec import encode, unpack_map
from shared.protocol.dead import DeadRequest
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord, RoleCard
from shared.service.feature_level import FeatureLevel
from shared.subjects import LEVEL_KEY
from shared.token_log.ownership import OwnershipLog
from tests.nats_server import NatsServer
from tests.worker.io_stage import POOL, Stage, make_claim, make_request, open_stage

pytestmark = pytest.mark.integration

NEXT = FEATURE_LEVEL + 1
NEWER_RECORDS: dict[str, dict[str, Any]] = {
    "readable": {"t": "release", "prev": 0, "worker": "w", "level": NEXT, "v": 2},
    "of another kind": {"t": "handover", "to": ["w"], "level": NEXT, "v": 2},
}


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    """Of a service that an earlier release has made."""
    async with open_stage(nats_server.url, first_level=1) as stage:
        yield stage


async def raise_level(cluster: Cluster, level: int = NEXT) -> None:
    stored = await cluster.level.read()
    bucket = cluster.bucket(cluster.subjects.meta_bucket)
    await bucket.put_if(LEVEL_KEY, encode(LevelRecord(level)), stored.revision)


async def next_build(stage: Stage) -> OwnershipLog:
    """As a build has it that knows one level more."""
    cluster = stage.cluster
    level = FeatureLevel(cluster.js, cluster.subjects, known=NEXT)
    await level.read()
    return OwnershipLog(cluster.js, cluster.subjects, level)


async def write_raw(stage: Stage, rid: str, body: dict[str, Any]) -> int:
    subject = stage.cluster.subjects.ownership(rid)
    return (await stage.cluster.js.publish(subject, msgspec.msgpack.encode(body))).seq


async def stored_levels(stage: Stage, rid: str) -> list[int]:
    """Of each ownership record, as its bytes say; 1 is not written."""
    cluster = stage.cluster
    pattern = cluster.subjects.ownership(rid)
    scan = cluster.js.direct_scan(cluster.subjects.tokens_stream, pattern)
    return [unpack_map(message.data).get("level", 1) async for message in scan]


async def test_nothing_above_the_level_in_force_is_written(stage: Stage) -> None:
    """A newer build writes as the older ones read, until its level is in force."""
    request = make_request()
    ownership = await next_build(stage)
    claim = await ownership.append(request.rid, make_claim(request, "w1"))
    await raise_level(stage.cluster)
    release = await ownership.append(request.rid, Release(claim, "w1"))
    assert (await ownership.level.read()).record.level == NEXT
    await ownership.append(request.rid, make_claim(request, "w2", prev=release))
    assert await stored_levels(stage, request.rid) == [1, 1, NEXT]
    assert ownership.level.stamp(request).level == NEXT


@pytest.mark.parametrize("body", NEWER_RECORDS.values(), ids=NEWER_RECORDS)
async def test_who_meets_a_newer_record_ends_nothing(stage: Stage, body: dict[str, Any]) -> None:
    request, ownership = make_request(), stage.cluster.ownership
    await raise_level(stage.cluster)
    await write_raw(stage, request.rid, body)
    with pytest.raises(WrittenByNewer, match=f"level {NEXT}, this build knows {FEATURE_LEVEL}"):
        await ownership.end(request.rid, End(0, FinishReason.CANCEL, "f"))
    with pytest.raises(WrittenByNewer):
        await ownership.append(request.rid, make_claim(request, "w"))
    for read in (ownership.last, ownership.read):
        with pytest.raises(WrittenByNewer):
            await read(request.rid)
    with pytest.raises(WrittenByNewer):
        await ownership.is_held_by(request.rid, "w", 1)
    assert len(await stored_levels(stage, request.rid)) == 1
    assert ownership.level.outdated.is_set()


async def test_a_record_of_a_level_that_is_not_in_force_is_none(stage: Stage) -> None:
    """So that no message can keep a request for ever."""
    request, ownership = make_request(), stage.cluster.ownership
    await write_raw(stage, request.rid, NEWER_RECORDS["readable"])
    assert await ownership.last(request.rid) is None
    assert await ownership.end(request.rid, End(0, FinishReason.CANCEL, "f")) == 0
    assert not ownership.level.outdated.is_set()


async def test_a_queued_request_of_a_newer_build_is_not_unknown(stage: Stage) -> None:
    """A 404 for its client, or its end as an orphan, would be a lie."""
    request, queue = make_request(level=NEXT), stage.cluster.queue
    await stage.submit(request)
    assert await queue.find(request.rid) is None  # nobody may write so: it is somebody else's words
    await raise_level(stage.cluster)
    with pytest.raises(WrittenByNewer):
        await queue.find(request.rid)
    with pytest.raises(WrittenByNewer):
        await queue.of_pool(POOL)
    with pytest.raises(WrittenByNewer):
        await queue.of_frontend("")


async def test_a_dead_request_of_a_newer_build_stays_dead(stage: Stage) -> None:
    request = make_request(level=NEXT)
    dead = DeadRequest(request.rid, POOL, "batch", "poison", (), 1.0, 2.0, encode(request))
    store = DeadRequests(stage.cluster)
    await store.put(dead)
    [stored] = await store.all()
    assert isinstance(stored, StoredDead)
    with pytest.raises(NotKept, match=f"needs feature level {NEXT}"):
        await store.requeue(stored)
    assert len(await store.all()) == 1
    assert await stage.num_queued() == 0


async def test_an_older_build_does_not_start(stage: Stage) -> None:
    await raise_level(stage.cluster)
    with pytest.raises(OutdatedBuild, match=f"is at feature level {NEXT}, this build knows"):
        async with open_cluster(stage.config, "late"):
            pass


async def test_a_record_that_cannot_be_read_is_no_level(stage: Stage) -> None:
    """Whoever has written it: nobody starts on a guess."""
    bucket = stage.cluster.bucket(stage.cluster.subjects.meta_bucket)
    await bucket.put(LEVEL_KEY, b"\xc1")
    with pytest.raises(ConfigError, match="the feature level cannot be read"):
        async with open_cluster(stage.config, "late"):
            pass


async def show_card(cluster: Cluster, name: str, level: int) -> None:
    card = RoleCard(name, "frontend", host="h", level=level)
    await cluster.bucket(cluster.subjects.roles_bucket).put(name, encode(card))


async def test_an_operator_sees_raises_and_holds(stage: Stage) -> None:
    cluster = stage.cluster
    newer = Cluster(stage.config, cluster.nc, cluster.js, cluster.subjects, await next_build(stage))
    await show_card(cluster, "frontend-old", 1)
    await show_card(cluster, "frontend-new", NEXT)
    report = await LevelOrder().carry_out(newer)
    assert (report.level, report.is_held, report.known_here) == (1, False, NEXT)
    assert [(role.id, role.level) for role in report.roles] == [
        ("frontend-old", 1),
        ("frontend-new", NEXT),
    ]
    assert (await LevelOrder(hold=True).carry_out(newer)).is_held
    with pytest.raises(ConfigError, match=f"to is {NEXT}, but 1 roles .* know less: frontend-old"):
        await LevelOrder(to=NEXT).carry_out(newer)
    report = await LevelOrder(to=NEXT, force=True).carry_out(newer)
    assert (report.level, report.is_held) == (NEXT, True)
    with pytest.raises(ConfigError, match=f"to is 1, but level {NEXT} is in force: it never"):
        await LevelOrder(to=1).carry_out(newer)
    with pytest.raises(ConfigError, match=f"to is {NEXT + 1}, but this .* knows {NEXT}"):
        await LevelOrder(to=NEXT + 1).carry_out(newer)
    assert not (await LevelOrder(hold=False).carry_out(newer)).is_held
    assert (await newer.level.read()).record == LevelRecord(NEXT)


async def test_of_two_who_raise_it_at_once_one_does(stage: Stage) -> None:
    first, second = (await next_build(stage)).level, (await next_build(stage)).level
    seen = await first.read()
    await first.put(LevelRecord(NEXT), seen.revision)
    with pytest.raises(CasConflict):
        await second.put(LevelRecord(1, is_held=True), seen.revision)
    assert (await second.read()).record == LevelRecord(NEXT)


def test_a_stamp_is_not_written_at_the_first_level() -> None:
    """So that the bytes are those that the first build of this version wrote."""
    claim = make_claim(make_request(), "w")
    assert isinstance(claim, Claim)
    assert "level" not in unpack_map(encode(claim))


async def test_streams_that_this_build_makes_have_its_level_from_the_beginning(
    nats_server: NatsServer,
) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "first") as first, open_cluster(config, "second") as second:
        assert (first.level.in_force, second.level.in_force) == (FEATURE_LEVEL, FEATURE_LEVEL)
        older = FeatureLevel(first.js, first.subjects, known=FEATURE_LEVEL - 1)
        await older.read()
        with pytest.raises(OutdatedBuild):
            older.check()


async def test_streams_that_an_earlier_build_has_made_keep_their_level(
    nats_server: NatsServer,
) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "older", first_level=1), open_cluster(config, "now") as now:
        assert now.level.in_force == 1
