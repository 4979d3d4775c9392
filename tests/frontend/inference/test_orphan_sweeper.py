"""A sweep of what a frontend left, step by step: whom it takes for dead, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from frontend.inference.answers.orphan_sweeper import OrphanSweeper
from shared.errors import BrokerUnavailable, CasConflict
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from tests.bad_moment import failing_once
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.inference.test_orphans import start_stream

pytestmark = pytest.mark.integration


@dataclass
class Sweep:
    """A survivor that sweeps when the test says so, and a queued stream of one that has died."""

    stack: Stack
    survivor: RunningFrontend
    sweeper: OrphanSweeper
    dead_id: str
    rid: str

    async def run(self) -> None:
        """One sweep, as behind a look that found it dead."""
        self.sweeper._sweeping.add(self.dead_id)
        await self.sweeper._sweep_later(self.dead_id)

    async def is_ended(self) -> bool:
        last = await self.stack.cluster.ownership.last(self.rid)
        if last is None:
            return False
        assert isinstance(last.record, End)
        assert last.record.reason is FinishReason.CANCEL
        return True

    async def is_known(self) -> bool:
        """Whether somebody who starts now would look after what it left."""
        attachments = self.survivor.frontend.side.inference.ends.attachments
        return self.dead_id in await attachments.frontends()

    async def delete_card(self, frontend_id: str) -> None:
        """As its heartbeat expires."""
        roles = self.stack.cluster.bucket(self.stack.cluster.subjects.roles_bucket)
        await roles.delete(frontend_id)


@pytest.fixture
async def sweep(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    # Nobody looks by itself any more after a first time.
    monkeypatch.setattr("frontend.inference.answers.orphan_sweeper._POLL_S", 3600.0)
    stack.backend.hold.clear()
    doomed = await stack.start_frontend()
    survivor = await stack.start_frontend(orphan_wait_s=0.0)
    sweeper = survivor.frontend.side.inference.orphan_sweeper
    rid = await start_stream(doomed)
    sweep = Sweep(stack, survivor, sweeper, doomed.frontend_id, rid)
    await sweep.delete_card(doomed.frontend_id)
    return sweep


async def test_a_dead_frontends_stream_is_ended_and_the_frontend_forgotten(sweep: Sweep) -> None:
    await sweep.run()
    assert await sweep.is_ended()
    assert not await sweep.is_known()
    assert sweep.dead_id not in sweep.sweeper._missed
    assert sweep.dead_id not in sweep.sweeper._sweeping


async def test_who_has_come_back_is_not_swept(sweep: Sweep) -> None:
    roles = sweep.stack.cluster.bucket(sweep.stack.cluster.subjects.roles_bucket)
    await roles.put(sweep.dead_id, b"a heartbeat")
    await sweep.run()
    assert not await sweep.is_ended()
    assert await sweep.is_known()


async def test_nobody_is_swept_while_heartbeats_cannot_be_written(sweep: Sweep) -> None:
    sweep.sweeper._writability.note(is_written=False)
    await sweep.run()
    assert not await sweep.is_ended()
    assert sweep.sweeper._missed.get(sweep.dead_id) == 0, "it is looked for again"


async def test_one_of_many_survivors_sweeps(sweep: Sweep) -> None:
    roles = sweep.stack.cluster.bucket(sweep.stack.cluster.subjects.roles_bucket)
    await roles.put(f"orphans.{sweep.dead_id}", b"another frontend")
    await sweep.run()
    assert not await sweep.is_ended()
    assert sweep.dead_id not in sweep.sweeper._sweeping


async def test_whoever_comes_back_keeps_its_stream_and_the_next_sweep_looks_again(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may leave the line without having joined."""
    with monkeypatch.context() as patch:
        patch.setattr(sweep.sweeper, "_is_in_line", lambda group_id: group_id == sweep.rid)
        await sweep.run()
        assert not await sweep.is_ended()
        assert await sweep.is_known()
        assert sweep.sweeper._missed.get(sweep.dead_id) == 0
    await sweep.delete_card(f"orphans.{sweep.dead_id}")  # as its time passes
    await sweep.run()
    assert await sweep.is_ended()
    assert not await sweep.is_known()


async def test_a_client_that_comes_back_while_its_stream_is_about_to_be_ended_keeps_it(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks when the sweep has read what there is, and has not joined yet."""
    answers = iter([False, True])
    monkeypatch.setattr(sweep.sweeper, "_is_in_line", lambda _: next(answers))
    await sweep.run()
    assert not await sweep.is_ended()


async def test_somebody_who_joins_or_leaves_meanwhile_is_looked_at_again(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_once(monkeypatch, sweep.sweeper._attachments, "leave", CasConflict("changed"))
    await sweep.run()
    assert await sweep.is_ended()


async def test_a_sweep_that_nats_cuts_is_done_again(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_once(monkeypatch, sweep.sweeper._attachments, "leave", BrokerUnavailable("away"))
    await sweep.run()
    assert not await sweep.is_ended()
    assert await sweep.is_known()
    assert sweep.sweeper._missed.get(sweep.dead_id) == 0
    assert sweep.dead_id not in sweep.sweeper._sweeping
    await sweep.delete_card(f"orphans.{sweep.dead_id}")
    await sweep.run()
    assert await sweep.is_ended()


# Whom it takes for dead


async def test_two_looks_in_a_row_without_a_heartbeat_make_a_death(sweep: Sweep) -> None:
    sweeper, own_id = sweep.sweeper, sweep.survivor.frontend_id
    roles = sweep.stack.cluster.bucket(sweep.stack.cluster.subjects.roles_bucket)
    sweeper._missed.clear()
    card = await roles.get(own_id)
    assert card is not None
    await roles.put("unreadable", b"\xc1")
    await roles.put("orphans.somebody", card.value)  # who sweeps, and no card of its own
    await sweep.delete_card(own_id)
    sweeper._missed[sweep.dead_id] = sweeper._missed[own_id] = 0
    assert await sweeper._newly_dead() == []
    assert await sweeper._newly_dead() == [sweep.dead_id], "and it lives itself"
    sweeper._sweeping.add(sweep.dead_id)
    assert await sweeper._newly_dead() == [], "it is being swept"


async def test_a_heartbeat_between_two_looks_is_a_life(sweep: Sweep) -> None:
    sweeper, own_id = sweep.sweeper, sweep.survivor.frontend_id
    roles = sweep.stack.cluster.bucket(sweep.stack.cluster.subjects.roles_bucket)
    card = await roles.get(own_id)
    assert card is not None
    other_id = "frontend-other"
    other = card.value.replace(own_id.encode(), other_id.encode().ljust(len(own_id), b"-"))
    other_id = other_id.ljust(len(own_id), "-")
    sweeper._missed.clear()
    sweeper._missed[other_id] = 0
    for _ in range(3):
        assert await sweeper._newly_dead() == []
        await roles.put(other_id, other)
        assert await sweeper._newly_dead() == []
        await roles.delete(other_id)


@pytest.mark.parametrize("is_blind", [True, False])
async def test_who_cannot_see_or_write_takes_nobody_for_dead(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, is_blind: bool
) -> None:
    sweeper = sweep.sweeper
    sweeper._missed.clear()
    sweeper._missed[sweep.dead_id] = 1
    if is_blind:
        failing_once(monkeypatch, sweeper._roles, "entries", BrokerUnavailable("away"))
        assert await sweeper._newly_dead() == []
        assert await sweeper._newly_dead() == [sweep.dead_id]
    else:
        sweeper._writability.note(is_written=False)
        assert await sweeper._newly_dead() == []
        assert sweeper._missed.get(sweep.dead_id) == 0, "it is counted anew"


async def test_who_starts_knows_those_before_it(sweep: Sweep) -> None:
    """They may have died when nobody looked."""
    third = await sweep.stack.start_frontend()
    sweeper = third.frontend.side.inference.orphan_sweeper
    await sweeper._register()
    assert {sweep.dead_id, sweep.survivor.frontend_id} <= sweeper._missed.keys()
    assert third.frontend_id in await third.frontend.side.inference.ends.attachments.frontends()
