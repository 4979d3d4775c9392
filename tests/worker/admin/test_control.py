"""What operators can do to a worker."""

from __future__ import annotations

import asyncio

import pytest

from shared.admin.control import (
    Continue,
    ControlReply,
    Drain,
    FlushCache,
    GetStats,
    Pause,
    PauseMode,
    StartProfile,
    StopProfile,
    decode_control_reply,
)
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Release
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.eventually import eventually, eventually_async
from tests.time_to_err import time_to_err
from tests.worker.io_stage import POOL, Stage, ids, make_request
from tests.worker.running_worker import RunningWorker, running_worker

pytestmark = pytest.mark.integration

LENGTH = Finish(FinishReason.LENGTH)
FREEZE = Pause(PauseMode.FREEZE)


async def shown_state(stage: Stage, worker: RunningWorker) -> WorkerState | None:
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    entry = await bucket.get(f"{POOL}.{worker.id}")
    return None if entry is None else decode(WorkerCard, entry.value).state


async def until_shown(stage: Stage, worker: RunningWorker, state: WorkerState) -> None:
    async def is_shown() -> bool:
        return await shown_state(stage, worker) is state

    await eventually_async(is_shown)


async def order(stage: Stage, worker: RunningWorker, request: Pause | Continue | Drain) -> None:
    assert await stage.tell(request, worker.id) == ControlReply(worker.id, True)


async def test_a_flush_for_all_reaches_the_engine(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        assert await stage.tell(FlushCache()) == ControlReply(worker.id, True)
        assert worker.engine.num_flushes == 1


async def test_a_profile_needs_a_folder_of_the_operator(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        refused = await stage.tell(StartProfile(2.0))
        assert (refused.ok, worker.engine.profiles) == (False, [])
        assert "--profile-dir" in refused.message
    async with running_worker(stage, profile_dir="/profiles") as worker:
        assert await stage.tell(StartProfile(2.0)) == ControlReply(worker.id, True)
        assert not (await stage.tell(StartProfile(1e9))).ok
        assert await stage.tell(StopProfile()) == ControlReply(worker.id, True)
        assert worker.engine.profiles == [2.0, 0.0]


async def test_a_paused_worker_finishes_what_it_has_and_takes_nothing(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        first, second = make_request(), make_request()
        await stage.submit(first)
        run = await worker.engine.next_run()
        await order(stage, worker, Pause())
        await until_shown(stage, worker, WorkerState.PAUSED)
        await stage.submit(second)
        delivery = await stage.pull()  # nobody else was asked for it
        assert delivery.rid == second.rid
        assert delivery.num_delivered == 1
        worker.engine.emit(run.run_id, ids("ok"), LENGTH)
        assert (await stage.until_finished(first.rid)).tokens == ids("ok")
        await worker.until_idle()
        await order(stage, worker, Continue())
        await until_shown(stage, worker, WorkerState.READY)
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        assert (await worker.engine.next_run()).prompt_ids == second.prompt_ids


async def test_a_pause_holds_when_the_engine_is_started_again(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        await order(stage, worker, FREEZE)
        worker.engine.die()
        engine = await worker.next_engine()
        assert engine.is_paused
        await until_shown(stage, worker, WorkerState.FROZEN)
        await stage.submit(make_request())
        assert (await stage.pull()).num_delivered == 1


async def test_a_frozen_request_stays_where_it_is_and_goes_on(stage: Stage) -> None:
    """For longer than a hung engine would be let keep it."""
    async with running_worker(stage, hang_timeout_s=1.0) as worker:
        worker.runner._ack_heartbeat._ack_wait_s = 0.4
        request = make_request()
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"))
        await stage.until_logged(request.rid, 1)
        await order(stage, worker, FREEZE)
        assert worker.engine.is_paused
        [held] = worker.held
        kept_at = held.kept_at
        await eventually(lambda: held.kept_at > kept_at + 1.5)
        assert not worker.runner.parts.hang_watch.is_hung
        await order(stage, worker, Continue())
        assert not worker.engine.is_paused
        worker.engine.emit(run.run_id, ids("b"), LENGTH)
        assert (await stage.until_finished(request.rid)).tokens == ids("ab")
        assert len(await stage.records(request.rid)) == 1


async def test_what_is_frozen_too_long_is_handed_over(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        request = make_request()
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"))
        await stage.until_logged(request.rid, 1)
        await order(stage, worker, Pause(PauseMode.FREEZE, freeze_s=0.2))
        delivery = await stage.pull()
        assert delivery.rid == request.rid
        assert isinstance((await stage.records(request.rid))[-1].record, Release)
        await until_shown(stage, worker, WorkerState.PAUSED)
        await worker.until_idle()


async def test_the_end_of_an_earlier_freeze_does_not_end_a_later_one(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        await order(stage, worker, Pause(PauseMode.FREEZE, freeze_s=0.3))
        await order(stage, worker, Continue())
        await order(stage, worker, FREEZE)
        await time_to_err(0.5)
        assert worker.worker._state is WorkerState.FROZEN
        assert worker.engine.is_paused


async def test_a_full_log_does_not_thaw_a_frozen_engine(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        await order(stage, worker, FREEZE)
        host = worker.worker._engine
        host.set_stalled(True)
        host.set_stalled(False)
        assert worker.engine.is_paused
        host.set_stalled(True)
        await order(stage, worker, Continue())
        assert worker.engine.is_paused
        host.set_stalled(False)
        assert not worker.engine.is_paused


async def test_a_drained_worker_hands_over_and_exits(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        request = make_request()
        await stage.submit(request)
        await worker.engine.next_run()
        await order(stage, worker, Drain())
        assert (await stage.pull()).rid == request.rid
        async with asyncio.timeout(10):
            await asyncio.wait([worker.task])
        assert worker.task.exception() is None


async def test_a_drain_with_time_lets_requests_finish(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        request = make_request()
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("is "))
        await stage.until_logged(request.rid, 3)
        await order(stage, worker, Drain(timeout_s=60))
        await until_shown(stage, worker, WorkerState.DRAINING)
        refused = await stage.tell(Continue(), worker.id)
        assert refused == ControlReply(worker.id, False, "the worker is being drained")
        worker.engine.emit(run.run_id, ids("ok"), LENGTH)
        async with asyncio.timeout(10):
            await asyncio.wait([worker.task])
    assert (await stage.fold(request.rid)).finish == LENGTH
    await stage.until_queue_is_empty()


async def test_stats_tell_what_a_worker_has_done(stage: Stage) -> None:
    async with running_worker(stage) as worker:
        request = make_request()
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("abc"))
        await stage.until_logged(request.rid, 3)
        stats = (await stage.tell(GetStats(), worker.id)).stats
        assert stats is not None
        assert (stats.state, stats.revision, stats.num_held) == ("ready", "rev", 1)
        assert (stats.num_taken, stats.num_generated_tokens) == (1, 3)
        worker.engine.emit(run.run_id, ids("d"), LENGTH)
        await worker.until_idle()
        stats = (await stage.tell(GetStats(), worker.id)).stats
        assert stats is not None
        assert (stats.num_held, stats.num_finished) == (0, 1)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"", "Input data was truncated"),
        (b"\xff{", "malformed"),
        (b'{"verb": "explode"}', "explode"),
        (b'{"verb": "pause", "mode": "nicely"}', "$.mode"),
        (b'{"verb": "pause", "modus": "finish"}', "modus"),
        (b'{"verb": "pause", "freeze_s": 0}', "freeze_s"),
        (b'{"verb": "drain", "timeout_s": -1}', "timeout_s"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    stage: Stage, payload: bytes, named: str
) -> None:
    async with running_worker(stage) as worker:
        subject = stage.cluster.subjects.admin_worker(POOL, worker.id)
        answer = await stage.cluster.nc.request(subject, payload, 10.0)
        reply = decode_control_reply(answer.data)
        assert not reply.ok
        assert named in reply.message
        assert worker.worker._state is WorkerState.READY


async def test_slots_that_hold_no_keys_and_values_are_not_told(stage: Stage) -> None:
    """They would dwarf those of other models in what is said of all workers."""
    async with running_worker(stage) as worker:
        worker.engine.step([])
        assert worker.worker._worker_card().num_kv_tokens == 100_000
        worker.engine.become_ready(keeps_kv=False)
        card = worker.worker._worker_card()
        assert (card.num_kv_tokens, card.kv_cache_usage) == (0, 0.0)
