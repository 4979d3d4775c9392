"""Ways that are cut: drains, engines that die, a broker that goes away."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from shared.errors import BrokerUnavailable
from shared.protocol.codec import decode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err
from tests.worker.io_stage import POOL, Stage, ids, make_claim, make_request
from tests.worker.running_worker import RunningWorker, output_of, running_worker
from worker.engine_link.engine_messages import AddRequest
from worker.held.delivery import Delivery

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


async def start_run(stage: Stage, worker: RunningWorker, rid: str, text: str) -> AddRequest:
    """A run of this worker that has logged some text."""
    run = await worker.engine.next_run()
    worker.engine.emit(run.run_id, ids(text))
    await stage.until_logged(rid, len(output_of(run)) + len(text))
    return run


async def kinds(stage: Stage, rid: str) -> list[type]:
    return [type(stored.record) for stored in await stage.records(rid)]


def hold_up_claims(
    monkeypatch: pytest.MonkeyPatch, worker: RunningWorker
) -> tuple[asyncio.Event, asyncio.Event]:
    """Claims are stored, but nobody hears of it before the second event."""
    is_claimed, may_return = asyncio.Event(), asyncio.Event()
    take = worker.runner.claims.taker._claimer.take

    async def take_slowly(*args: object) -> object:
        result = await take(*args)  # type: ignore[arg-type]
        is_claimed.set()
        await may_return.wait()
        return result

    monkeypatch.setattr(worker.runner.claims.taker._claimer, "take", take_slowly)
    return is_claimed, may_return


# Drain


async def test_a_drain_hands_over_at_once(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as first, running_worker(stage, is_ready=False) as second:
        await stage.submit(request)
        run = await start_run(stage, first, request.rid, "hel")
        first.engine.emit(run.run_id, ids("l"))  # in no frame yet: flushed before the release
        second.engine.become_ready()
        started = time.monotonic()
        await first.stop()
        again = await second.engine.next_run()
        assert time.monotonic() - started < stage.config.ack_wait_s / 2
        assert output_of(again) == ids("hell")
        first.assert_nothing_held()
        assert first.engine.aborted == [run.run_id]
        second.engine.emit(again.run_id, ids("o"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("hello")
        await second.until_idle()
    assert await kinds(stage, request.rid) == [Claim, Release, Claim]
    release = (await stage.records(request.rid))[1].record
    assert isinstance(release, Release)
    assert (release.worker, release.progressed, release.crashed) == (first.id, True, False)


async def test_nothing_is_written_behind_the_release(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        await worker.stop()
        worker.engine.emit(run.run_id, ids("c"), STOP)  # it had not heard of the abort
    released = (await stage.records(request.rid))[-1].seq
    assert all(seq < released for seq, _ in await stage.entries(request.rid))


async def test_a_drain_sees_through_what_is_finished(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        worker.engine.emit(run.run_id, ids("c"), STOP)
        await worker.stop()
        worker.assert_nothing_held()
    await stage.until_queue_is_empty()
    assert await kinds(stage, request.rid) == [Claim]


async def test_a_drain_gives_nothing_back_of_what_another_has_released(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await start_run(stage, worker, request.rid, "ab")
        epoch = worker.held[0].epoch
        theirs = await stage.append(request.rid, make_claim(request, "other", prev=epoch))
        await stage.append(request.rid, Release(theirs, "other", progressed=False))
        await worker.stop()
        assert worker.count("requests.released") == 0
    assert await kinds(stage, request.rid) == [Claim, Claim, Release]


async def test_a_drain_gives_back_at_once_what_was_ended(stage: Stage) -> None:
    """Whoever gets it next takes it out of the queue."""
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await start_run(stage, worker, request.rid, "ab")
        await stage.cluster.ownership.end(request.rid, End(0, FinishReason.CANCEL, by="frontend"))
        await worker.stop()
        assert worker.count("requests.released") == 1
    assert await kinds(stage, request.rid) == [Claim, End]


async def test_a_drain_releases_what_is_being_claimed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        is_claimed, may_return = hold_up_claims(monkeypatch, worker)
        await stage.submit(request)
        await worker.engine.next_run()
        await is_claimed.wait()
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: worker.runner.parts.capacity.is_closed)
        await time_to_err(0.05)
        may_return.set()
        await stopping
        worker.assert_nothing_held()
    assert await kinds(stage, request.rid) == [Claim, Release]
    assert (await stage.pull()).rid == request.rid  # given back at once


async def test_what_is_delivered_during_a_drain_is_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await stage.submit_and_pull(make_request())
    async with running_worker(stage) as worker:
        release_all = worker.runner.parts.hand_over.release_all

        async def release_late(*args: Any, **options: Any) -> None:
            worker.runner.on_delivery(delivery)  # it was on its way
            await release_all(*args, **options)

        monkeypatch.setattr(worker.runner.parts.hand_over, "release_all", release_late)
        await worker.stop()
        assert worker.engine.runs == {}
    again = await stage.pull()
    assert again.request_seq == delivery.request_seq


async def test_a_drain_without_a_broker_ends_in_time(stage: Stage, nats_server: NatsServer) -> None:
    request = make_request()
    async with running_worker(stage, drain_timeout_s=0.3) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        worker.cluster.js._timeout_s = 0.3
        nats_server.kill()
        worker.engine.emit(run.run_id, ids("c"))
        started = time.monotonic()
        await worker.stop()
        assert time.monotonic() - started < 5.0
        nats_server.start()  # for the fixtures


async def shown_state(stage: Stage, worker: RunningWorker) -> WorkerState | None:
    """What its card says to everybody."""
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    entry = await bucket.get(f"{POOL}.{worker.id}")
    return None if entry is None else decode(WorkerCard, entry.value).state


async def test_with_a_shutdown_timeout_what_runs_may_finish(stage: Stage) -> None:
    running, late = make_request(), make_request()
    async with running_worker(stage, shutdown_timeout_s=30.0) as worker:
        await stage.submit(running)
        run = await start_run(stage, worker, running.rid, "ab")
        worker.worker.shutdown.ask()

        async def is_withdrawn() -> bool:
            return await shown_state(stage, worker) is WorkerState.DRAINING

        await eventually_async(is_withdrawn)
        await stage.submit(late)
        worker.engine.emit(run.run_id, ids("c"))
        assert (await stage.pull()).rid == late.rid, "it stays in the queue, for others"
        assert not worker.task.done()
        worker.engine.emit(run.run_id, ids("d"), STOP)
        async with asyncio.timeout(20.0):  # it does not wait any longer than it must
            await worker.task
        worker.assert_nothing_held()
    assert await kinds(stage, running.rid) == [Claim]
    assert (await stage.fold(running.rid)).tokens == ids("abcd")
    assert await shown_state(stage, worker) is None


@pytest.mark.parametrize("is_hurried", [False, True])
async def test_what_has_not_finished_by_then_is_handed_over(stage: Stage, is_hurried: bool) -> None:
    request = make_request()
    timeout_s = 60.0 if is_hurried else 0.5
    async with running_worker(stage, shutdown_timeout_s=timeout_s) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        worker.worker.shutdown.ask()
        worker.engine.emit(run.run_id, ids("c"))
        await stage.until_logged(request.rid, 3)
        assert await kinds(stage, request.rid) == [Claim], "not yet"
        if is_hurried:
            worker.worker.shutdown.ask()
        async with asyncio.timeout(20.0):
            await worker.task
        worker.assert_nothing_held()
    assert await kinds(stage, request.rid) == [Claim, Release]
    assert (await stage.pull()).rid == request.rid


# An engine that dies


async def test_a_dead_engines_requests_are_released_and_go_on(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker, running_worker(stage, is_ready=False) as other:
        await stage.submit(request)
        await start_run(stage, worker, request.rid, "ab")
        other.engine.become_ready()
        worker.engine.die()
        again = await other.engine.next_run()
        assert output_of(again) == ids("ab")
        await eventually(lambda: not worker.held)
        assert worker.runner.parts.held_requests.num_runs == 0
        other.engine.emit(again.run_id, ids("c"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("abc")
        await other.until_idle()
    release = (await stage.records(request.rid))[1].record
    assert isinstance(release, Release)
    assert release.crashed


async def test_the_next_engine_goes_on_in_a_new_epoch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await start_run(stage, worker, request.rid, "ab")
        worker.engine.die()
        engine = await worker.next_engine()
        again = await engine.next_run()
        assert output_of(again) == ids("ab")
        engine.emit(again.run_id, ids("c"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("abc")
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert await kinds(stage, request.rid) == [Claim, Release, Claim]


async def test_a_claim_that_outlives_its_engine_is_released(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    request = make_request()
    async with running_worker(stage) as worker:
        is_claimed, may_return = hold_up_claims(monkeypatch, worker)
        await stage.submit(request)
        await worker.engine.next_run()
        await is_claimed.wait()
        worker.engine.die()
        engine = await worker.next_engine()  # able to run, but not this run
        may_return.set()
        again = await engine.next_run()
        engine.emit(again.run_id, ids("a"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("a")
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert await kinds(stage, request.rid) == [Claim, Release, Claim]


async def test_a_finish_outlives_its_engine(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        worker.engine.emit(run.run_id, ids("c"), STOP)
        worker.engine.die()
        await stage.until_queue_is_empty()
    assert await kinds(stage, request.rid) == [Claim]
    assert (await stage.fold(request.rid)).tokens == ids("abc")


# A broker that goes away


async def test_a_broker_restart_in_the_middle_loses_and_repeats_nothing(
    stage: Stage, nats_server: NatsServer
) -> None:
    requests = [make_request() for _ in range(6)]
    async with running_worker(stage, max_running=6) as worker:
        for request in requests:
            await stage.submit(request)
        runs = [await worker.engine.next_run() for _ in requests]
        for run in runs:
            worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(requests[-1].rid, 2)
        nats_server.kill()
        for char in "cdef":  # the engine does not wait for the broker
            for run in runs:
                worker.engine.emit(run.run_id, ids(char))
            await asyncio.sleep(0.01)
        nats_server.start()
        for run in runs:
            worker.engine.emit(run.run_id, ids("g"), STOP)
        await eventually(lambda: not worker.held)
        worker.assert_nothing_held()
        await stage.until_queue_is_empty()
        assert worker.runner.parts.token_log.num_resent > 0
        for request in requests:
            fold = await stage.fold(request.rid)
            assert (fold.tokens, fold.finish) == (ids("abcdefg"), STOP)


async def test_requests_come_again_after_a_broker_restart(
    stage: Stage, nats_server: NatsServer
) -> None:
    async with running_worker(stage) as worker:
        nats_server.kill()
        nats_server.start()
        await eventually(lambda: stage.cluster.nc.is_connected and worker.cluster.nc.is_connected)
        request = make_request()

        async def is_submitted() -> bool:
            try:
                await stage.submit(request)
            except BrokerUnavailable:
                return False
            return True

        await eventually_async(is_submitted)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_a_frozen_broker_does_not_end_the_worker(
    stage: Stage, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        worker.cluster.js._timeout_s = 0.2
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        nats_server.pause()
        try:
            worker.engine.emit(run.run_id, ids("c"), STOP)
            worker.engine.die()
            await asyncio.sleep(0.5)
        finally:
            nats_server.resume()
        assert (await stage.until_finished(request.rid)).tokens == ids("abc")
        await stage.until_queue_is_empty()


async def test_an_outbound_buffer_that_is_full_does_not_end_the_worker(
    stage: Stage, nats_server: NatsServer
) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await start_run(stage, worker, request.rid, "ab")
        delivery = worker.held[0].delivery
        nats_server.kill()
        await eventually(lambda: not worker.cluster.nc.is_connected)
        size, worker.cluster.nc._max_pending_size = worker.cluster.nc._max_pending_size, 0
        worker.runner.on_delivery(delivery)  # what it says of it cannot be sent
        await worker.runner.parts.acks.nak(delivery)
        worker.engine.emit(run.run_id, ids("c"), STOP)
        await worker.runner._ack_heartbeat.keep_some(60.0)
        await asyncio.sleep(0.05)
        worker.cluster.nc._max_pending_size = size
        nats_server.start()
        await stage.until_queue_is_empty()
        assert (await stage.fold(request.rid)).tokens == ids("abc")


async def test_a_finish_is_settled_by_a_broker_that_is_not_ready_at_once(
    older_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = older_stage
    request = make_request()
    async with running_worker(stage) as worker:
        ack = worker.runner.parts.acks.ack
        ready_at = time.monotonic() + 0.5

        async def ack_when_ready(delivery: Delivery) -> None:
            if time.monotonic() < ready_at:
                raise BrokerUnavailable("no responders")
            await ack(delivery)

        monkeypatch.setattr(worker.runner.parts.acks, "ack", ack_when_ready)
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await worker.until_idle()
        assert await stage.num_queued() == 0
