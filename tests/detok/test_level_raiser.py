"""The level rises once, when no role alive knows less."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from detok.level_raiser import LevelRaiser
from shared.cluster import Cluster
from shared.liveness.heartbeat import Writability
from shared.protocol.codec import encode
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord, RoleCard, WorkerCard, WorkerState
from shared.service.feature_level import FeatureLevel
from shared.token_log.ownership import OwnershipLog
from tests.detok.scripted import POOL, Stage, open_stage
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

NEXT = FEATURE_LEVEL + 1
DETOK = "detok-1"


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    """Of a service that an earlier release has made."""
    async with open_stage(nats_server.url, first_level=1) as stage:
        yield stage


class Raising:
    """The raiser of a build that knows one level more, which looks when it is told."""

    def __init__(self, stage: Stage, steady_s: float = 0.0, detok_id: str = DETOK) -> None:
        of = stage.cluster
        ownership = OwnershipLog(of.js, of.subjects, FeatureLevel(of.js, of.subjects, known=NEXT))
        self.cluster = Cluster(of.config, of.nc, of.js, of.subjects, ownership)
        self.seen = Writability()
        self.raiser = LevelRaiser(
            self.cluster, detok_id, (self.seen,), look_s=0.01, steady_s=steady_s
        )

    async def looks(self, times: int = 2) -> int:
        """The level behind it."""
        for _ in range(times):
            await self.raiser.look()
        return (await self.cluster.level.read()).record.level


async def show_role(stage: Stage, name: str, role: str, level: int) -> None:
    bucket = stage.cluster.bucket(stage.cluster.subjects.roles_bucket)
    await bucket.put(name, encode(RoleCard(name, role, level=level)))


async def show_worker(stage: Stage, name: str, level: int) -> None:
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    card = WorkerCard(name, POOL, "m", "r", WorkerState.LOADING, level=level)
    await bucket.put(f"{POOL}.{name}", encode(card))


async def hide(stage: Stage, name: str) -> None:
    await stage.cluster.bucket(stage.cluster.subjects.roles_bucket).delete(name)


async def test_it_rises_when_the_last_lower_role_is_gone(stage: Stage) -> None:
    raising = Raising(stage)
    await show_role(stage, DETOK, "detok", NEXT)
    await show_worker(stage, "worker-1", NEXT)
    for role in ("frontend", "detok", "supervisor", "what comes later"):
        await show_role(stage, "older", role, 1)
        assert await raising.looks() == 1
        await hide(stage, "older")
    assert await raising.looks() == NEXT
    assert raising.cluster.level.in_force == NEXT


async def test_a_worker_that_loads_counts(stage: Stage) -> None:
    raising = Raising(stage)
    await show_role(stage, DETOK, "detok", NEXT)
    await show_worker(stage, "worker-1", 1)
    assert await raising.looks() == 1


async def test_a_card_that_cannot_be_read_counts_as_the_lowest(stage: Stage) -> None:
    raising = Raising(stage)
    await show_role(stage, DETOK, "detok", NEXT)
    bucket = stage.cluster.bucket(stage.cluster.subjects.roles_bucket)
    await bucket.put("strange", b"\xc1")
    assert await raising.looks() == 1


async def test_it_does_not_rise_on_an_empty_table(stage: Stage) -> None:
    """Who does not even see itself sees too little."""
    raising = Raising(stage)
    await show_role(stage, "detok-2", "detok", NEXT)
    assert await raising.looks() == 1


async def test_it_does_not_rise_while_heartbeats_cannot_be_written(stage: Stage) -> None:
    raising = Raising(stage)
    await show_role(stage, DETOK, "detok", NEXT)
    raising.seen.note(is_written=False)
    assert await raising.looks() == 1


async def test_it_rises_only_when_all_has_been_so_for_a_while(stage: Stage) -> None:
    raising = Raising(stage, steady_s=3600.0)
    await show_role(stage, DETOK, "detok", NEXT)
    assert await raising.looks(5) == 1


async def test_it_does_not_rise_while_it_is_held(stage: Stage) -> None:
    raising = Raising(stage)
    level = raising.cluster.level
    await level.put(LevelRecord(1, is_held=True), 0)
    await show_role(stage, DETOK, "detok", NEXT)
    assert await raising.looks() == 1
    await level.put(LevelRecord(1), (await level.read()).revision)
    assert await raising.looks() == NEXT


async def test_all_detokenizers_together_raise_it_once(stage: Stage) -> None:
    raisings = [Raising(stage, detok_id=f"detok-{i}") for i in range(3)]
    for i in range(3):
        await show_role(stage, f"detok-{i}", "detok", NEXT)
    async with asyncio.timeout(10):
        await asyncio.gather(*(each.raiser.run() for each in raisings))
    stored = await raisings[0].cluster.level.read()
    assert stored.record == LevelRecord(NEXT)
    bucket = f"KV_{stage.cluster.subjects.meta_bucket}"
    info = await stage.cluster.js.api(f"STREAM.INFO.{bucket}")
    assert info["state"]["last_seq"] == 2  # beside the incarnation
