"""Engines that make no step: what is a hang, what is not, and what becomes of the requests."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from shared.errors import ConfigError
from shared.nats_client.connection import round_trip
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.role_cards import WorkerState
from shared.subjects import LANES
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err
from tests.worker.io_stage import Stage, ids, make_request, open_stage
from tests.worker.running_worker import output_of, running_worker
from tests.worker.settlement.test_hand_over import kinds, start_run
from worker.capacity.hang_watch import HangWatch
from worker.config import WorkerConfig
from worker.engine.scripted.scripted_engine import ScriptedEngine
from worker.engine_link.engine_messages import EngineReady
from worker.engine_link.scripted_config import ScriptedConfig
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)
HANG_S = 1.0
ACK_WAIT_S = 2.0


async def test_a_hung_engine_loses_its_work_and_its_worker_leaves(
    nats_server: NatsServer,
) -> None:
    """The others do not wait until the server takes it for dead."""
    begun, new = make_request(), make_request()
    async with open_stage(nats_server.url, ack_wait_s=120.0) as stage:
        async with (
            running_worker(stage, hang_timeout_s=HANG_S) as hung,
            running_worker(stage, is_ready=False) as other,
        ):
            await stage.submit(begun)
            await start_run(stage, hung, begun.rid, "ab")
            await stage.submit(new)
            await hung.engine.next_run()
            other.engine.become_ready()
            await hung.until_hung()
            runs = [await other.engine.next_run() for _ in range(2)]
            assert sorted(output_of(run) for run in runs) == [[], ids("ab")]
            assert hung.engine.is_dead, "its process is killed, and no other is started"
            assert len(hung.engines) == 1
            assert hung.worker._worker_card().state is WorkerState.HUNG
            for run in runs:
                other.engine.emit(run.run_id, ids("c"), STOP)
            assert (await stage.until_finished(begun.rid)).tokens == ids("abc")
            await stage.until_queue_is_empty()
            await other.until_idle()
        for request, has_progressed in ((begun, True), (new, False)):
            assert await kinds(stage, request.rid) == [Claim, Release, Claim]
            release = (await stage.records(request.rid))[1].record
            assert isinstance(release, Release)
            assert release.crashed, "it counts for poison"
            assert release.progressed is has_progressed


async def test_a_slow_step_loses_nothing(nats_server: NatsServer) -> None:
    """It may last longer than the ack wait: the worker keeps what it has, and takes nothing new."""
    request, late = make_request(), make_request()
    async with (
        open_stage(nats_server.url, ACK_WAIT_S) as stage,
        running_worker(stage, hang_timeout_s=4 * ACK_WAIT_S) as worker,
    ):
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        with pytest.raises(AssertionError, match="no delivery"):
            await stage.pull(timeout_s=2.2 * ACK_WAIT_S)
        await eventually(lambda: not worker.runner.parts.hang_watch.is_prompt)
        assert worker.runner.parts.capacity.num_credits() == 0
        await stage.submit(late)  # an open pull may still bring it
        delivery = await stage.pull()
        while delivery.rid != late.rid:
            delivery = await stage.pull()
        assert list(worker.engine.runs) == [run.run_id]
        worker.engine.emit(run.run_id, ids("c"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("abc")
        await eventually(lambda: worker.count("requests.finished") == 1)
        assert await kinds(stage, request.rid) == [Claim]


async def test_what_steps_is_kept_beyond_ack_wait_and_hang_timeout(nats_server: NatsServer) -> None:
    request = make_request()
    async with (
        open_stage(nats_server.url, ACK_WAIT_S) as stage,
        running_worker(stage, hang_timeout_s=HANG_S) as worker,
    ):
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        stepping = asyncio.create_task(worker.engine.keep_stepping())
        with pytest.raises(AssertionError, match="no delivery"):
            await stage.pull(timeout_s=2.2 * HANG_S)
        stepping.cancel()
        assert worker.held[0].delivery.num_delivered == 1
        worker.engine.emit(run.run_id, ids("c"), STOP)
        await stage.until_queue_is_empty()


async def test_a_worker_whose_frames_are_not_stored_loses_its_work(
    nats_server: NatsServer,
) -> None:
    """Its engine steps, and the server hears its acks: only the log takes nothing."""
    request = make_request()
    async with (
        open_stage(nats_server.url, ACK_WAIT_S) as stage,
        running_worker(stage) as worker,
    ):
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        js, stream = stage.cluster.js, stage.cluster.subjects.tokens_stream
        config = (await js.api(f"STREAM.INFO.{stream}"))["config"]
        await js.api(f"STREAM.UPDATE.{stream}", config | {"max_msg_size": 1})
        stepping = asyncio.create_task(worker.engine.keep_stepping())
        worker.engine.emit(run.run_id, ids("c"))
        delivery = await stage.pull(timeout_s=10 * ACK_WAIT_S)
        assert delivery.read_request().rid == request.rid
        assert delivery.num_delivered > 1
        assert worker.held[0].delivery.num_delivered == 1, "it has not given it back"
        stepping.cancel()
        await js.api(f"STREAM.UPDATE.{stream}", config)


async def test_an_engine_hangs_also_when_its_client_has_given_up(stage: Stage) -> None:
    """Without runs it would pass for an idle one, and take the next request."""
    request = make_request()
    async with running_worker(stage, hang_timeout_s=HANG_S) as worker:
        await stage.submit(request)
        await start_run(stage, worker, request.rid, "ab")
        await stage.cluster.ownership.end(request.rid, End(0, FinishReason.CANCEL, by="f"))
        await worker.runner.parts.settler.settle_ended(worker.held[0])
        assert worker.runner.parts.held_requests.num_runs == 0
        await worker.until_hung()
    assert await stage.num_queued() == 0


async def test_an_idle_engine_does_not_hang(stage: Stage) -> None:
    async with running_worker(stage, hang_timeout_s=HANG_S) as worker:
        worker.engine.step([])
        await time_to_err(1.5 * HANG_S)
        assert worker.runner.parts.hang_watch.step_age_s == 0.0
        assert not worker.task.done()


async def test_a_process_that_was_stopped_does_not_blame_its_engine(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage, hang_timeout_s=HANG_S) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        time.sleep(2 * HANG_S)  # noqa: ASYNC251 - as by SIGSTOP: the loop does not turn
        await time_to_err(HANG_S / 2)
        assert not worker.task.done()
        worker.engine.emit(run.run_id, ids("c"), STOP)
        await stage.until_queue_is_empty()
    assert await kinds(stage, request.rid) == [Claim]


async def test_a_machine_on_which_one_token_takes_long_gets_more_time(stage: Stage) -> None:
    async with running_worker(stage, is_ready=False) as worker:
        watch: HangWatch = worker.runner.parts.hang_watch
        assert watch.limit_s == 10.0
        worker.engine._on_event(EngineReady(1000, 29, 4, 100_000, 512, one_token_step_s=7.0))
        assert watch.limit_s == 140.0
    async with running_worker(stage, hang_timeout_s=30.0) as worker:
        assert worker.runner.parts.hang_watch.limit_s == 30.0


def test_a_scripted_engine_says_how_long_a_step_takes() -> None:
    config = ScriptedConfig(scripted_token_s=10.0, model_path=".")
    assert ScriptedEngine(config, time.monotonic).ready.one_token_step_s == 10.0


def test_a_timeout_that_slow_steps_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hang_timeout_s=0\.9 .* max_step_s=0\.5"):
        WorkerConfig(hang_timeout_s=0.9).check()
    assert WorkerConfig().engine_config(Path()).max_step_s == 0.5


async def test_thousands_of_requests_are_kept_some_at_a_time(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each look at them would keep the loop from everything else."""
    for tick in ("_TICK_S", "_IDLE_TICK_S"):
        monkeypatch.setattr(f"worker.capacity.ack_heartbeat.{tick}", 3600.0)
    acked: list[bytes] = []

    async def on_ack(message: Msg) -> None:
        acked.append(message.data)

    async with (
        open_stage(nats_server.url, ack_wait_s=320.0) as stage,
        running_worker(stage) as worker,
    ):
        await worker.cluster.nc.subscribe("kept", cb=on_ack)
        held_requests = worker.runner.parts.held_requests
        for _ in range(1000):
            delivery = Delivery(b"", "kept", 1, 1, datetime.now(UTC), "", LANES[0], 0)
            held = HeldRequest(make_request(), delivery, None)
            held.kept_at = float("-inf")
            held_requests.add(held)
        for num_ticks in range(1, 5):
            await worker.runner._ack_heartbeat.keep_some(10.0)
            await round_trip(worker.cluster.nc)
            assert acked == [b"+WPI"] * 250 * num_ticks
        for held in held_requests:
            held_requests.drop(held)
