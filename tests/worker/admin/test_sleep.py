"""A worker that sleeps: its memory is others', its requests wait, and none is lost."""

from __future__ import annotations

import pytest

from shared.admin.control import (
    Continue,
    ControlReply,
    ControlRequest,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from shared.admin.control_plane import ControlPlane, Target
from shared.admin.sleep_orders import SleepOrders
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from shared.protocol.role_cards import WorkerState
from tests.eventually import eventually
from tests.worker.checkpoints import DEMO_MODEL, copy_checkpoint, read_checkpoint
from tests.worker.io_stage import Stage, ids, make_request
from tests.worker.running_worker import RunningWorker, output_of, running_worker

pytestmark = pytest.mark.integration

LENGTH = Finish(FinishReason.LENGTH)


async def refusal(stage: Stage, worker: RunningWorker, order: ControlRequest) -> str:
    reply = await stage.tell(order, worker.id)
    assert not reply.ok
    return reply.message


async def until_asleep(worker: RunningWorker, level: int) -> None:
    await eventually(lambda: worker.worker._worker_card().sleep_level == level)
    assert worker.worker._state is WorkerState.PAUSED


@pytest.mark.parametrize("level", [1, 2])
async def test_what_runs_and_what_comes_waits_in_the_queue_and_goes_on_after_waking(
    stage: Stage, level: int
) -> None:
    orders = SleepOrders(ControlPlane(stage.cluster, "test"))
    async with running_worker(stage) as worker:
        running, waiting = make_request(), make_request()
        await stage.submit(running)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"))
        await stage.until_logged(running.rid, 1)
        done = [ControlReply(worker.id, True)]
        assert not await orders.are_asleep(Target())
        assert await orders.sleep(Target(), Sleep(level)) == done
        assert await orders.sleep(Target(), Sleep(level)) == done, "it is asleep already"
        assert await orders.are_asleep(Target())
        assert worker.worker._state is WorkerState.PAUSED
        assert worker.engine.is_dead == (level == 2)
        assert worker.engine.num_releases == 2 - level
        await stage.submit(waiting)
        assert worker.runner._pulling is None
        assert "wake it up" in await refusal(stage, worker, Continue())
        await stage.tell(WakeUp(), worker.id)
        if level == 2:
            assert worker.worker._state is WorkerState.LOADING
            await eventually(lambda: len(worker.engines) == 2)
            worker.engine.become_ready()
        assert await orders.wake_up(Target()) == done
        assert worker.worker._state is WorkerState.READY
        runs = [await worker.engine.next_run() for _ in range(2)]
        [again] = [run for run in runs if output_of(run) == ids("a")]
        worker.engine.emit(again.run_id, ids("b"), LENGTH)
        assert (await stage.until_finished(running.rid)).tokens == ids("ab")
        kinds = [type(record.record) for record in await stage.records(running.rid)]
        assert [kind for kind in kinds if kind in (Claim, Release)] == [Claim, Release, Claim]


async def test_what_runs_may_finish_first(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        request = make_request()
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert (await stage.tell(Sleep(1, finish_timeout_s=60), worker.id)).ok
        await eventually(lambda: worker.runner._pulling is None)
        assert "falling asleep" in await refusal(stage, worker, WakeUp())
        assert worker.worker._worker_card().sleep_level == 0
        worker.engine.emit(run.run_id, ids("ok"), LENGTH)
        assert (await stage.until_finished(request.rid)).tokens == ids("ok")
        await until_asleep(worker, 1)
        assert worker.engine.aborted == []
        assert (await stage.tell(Sleep(2), worker.id)).ok  # deeper
        await until_asleep(worker, 2)
        assert "level 2: wake it up" in await refusal(stage, worker, Sleep(1))


async def test_an_engine_that_dies_asleep_comes_back_asleep(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        await stage.tell(Sleep(1), worker.id)
        await until_asleep(worker, 1)
        worker.engine.die()
        engine = await worker.next_engine()
        await eventually(lambda: engine.num_releases == 1)
        await until_asleep(worker, 1)
        assert worker.runner._pulling is None


async def test_a_sleep_that_cannot_be_is_refused_and_changes_nothing(stage: Stage) -> None:
    async with running_worker(stage, is_ready=False) as worker:
        assert "loading" in await refusal(stage, worker, Sleep(1))
        worker.engine.become_ready(can_release_cache=False)
        assert "at level 2" in await refusal(stage, worker, Sleep(1))
        assert "must be 1 or 2" in await refusal(stage, worker, Sleep(3))
        assert "finish_timeout_s" in await refusal(stage, worker, Sleep(2, -1.0))
        await stage.submit(make_request())
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), LENGTH)


async def test_other_weights_wake_it(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a trainer wants it: the old ones are never loaded again."""
    other = read_checkpoint(copy_checkpoint(tmp_path_factory.mktemp("other") / "new"))
    async with running_worker(stage, checkpoint=read_checkpoint(DEMO_MODEL)) as worker:
        await stage.tell(Sleep(2), worker.id)
        await until_asleep(worker, 2)
        assert (await stage.tell(UpdateWeights(str(other.path)), worker.id)).ok
        await eventually(lambda: len(worker.engines) == 2)
        assert worker.engine.path == other.path
        worker.engine.become_ready()
        await eventually(lambda: worker.worker._state is WorkerState.READY)
        await stage.submit(make_request())
        await worker.engine.next_run()


async def test_weights_that_changed_meanwhile_are_not_taken_for_the_old_ones(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = copy_checkpoint(tmp_path_factory.mktemp("served") / "model")
    async with running_worker(stage, checkpoint=read_checkpoint(path)) as worker:
        await stage.tell(Sleep(2), worker.id)
        await until_asleep(worker, 2)
        with (path / "model.safetensors").open("ab") as file:
            file.write(b" ")
        assert "holds other weights" in await refusal(stage, worker, WakeUp())
        await until_asleep(worker, 2)
