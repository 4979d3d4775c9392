"""Requests that kill their workers: quarantined, then kept as dead letters; neighbours go on."""

from __future__ import annotations

import asyncio

import pytest

from shared.admin.dead_requests import DeadRequests
from shared.protocol.dead import DeadRequest
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.request import GenerateRequest
from tests.eventually import Looks, eventually, eventually_async
from tests.stream_limits import fill
from tests.time_to_err import time_to_err
from tests.worker.claims.test_claimer import make_claimer, take_by
from tests.worker.io_stage import Stage, ids, make_claim, make_request
from tests.worker.running_worker import RunningWorker, output_of, running_worker
from worker.claims.claim_steps import GivenUp, SeeRoom, Taken
from worker.engine_link.engine_messages import EngineFailed
from worker.held.held_request import HoldState

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


async def crash_before(
    stage: Stage, request: GenerateRequest, num_times: int, request_seq: int = 1
) -> int:
    """So many workers died under it; returns the last claim's sequence."""
    seq = 0
    for n in range(num_times):
        claim = make_claim(request, f"dead-{n}", seq, request_seq=request_seq, after_death=n > 0)
        seq = await stage.append(request.rid, claim)
    return seq


async def make_suspect(stage: Stage, num_crashes: int = 2) -> GenerateRequest:
    """The first request in the queue."""
    request = make_request()
    await crash_before(stage, request, num_crashes)
    await stage.submit(request)
    return request


async def dead_requests(stage: Stage) -> list[DeadRequest]:
    return [stored.dead for stored in await DeadRequests(stage.cluster).all()]


async def kinds(stage: Stage, rid: str) -> list[type]:
    return [type(stored.record) for stored in await stage.records(rid)]


# Counting


@pytest.mark.parametrize("shows_heartbeat", [False, True])
async def test_a_claim_tells_whether_the_holder_before_was_dead(
    stage: Stage, shows_heartbeat: bool
) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.append(request.rid, make_claim(request, "before"))
    claimer = make_claimer(stage, "w")
    if shows_heartbeat:
        await stage.show_heartbeat("before")
        await take_by(claimer, request, delivery)  # it is respected once
    taken = await take_by(claimer, request, delivery)
    assert isinstance(taken, Taken)
    assert len(taken.crashes) == (0 if shows_heartbeat else 1)
    claim = (await stage.records(request.rid))[-1].record
    assert isinstance(claim, Claim)
    assert claim.after_death is not shows_heartbeat


async def test_logged_tokens_acquit(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    last = await crash_before(stage, request, 2)
    await stage.write("dead-1", request.rid, last, 0, ids("a"))
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken)
    assert taken.crashes == ()


async def test_tokens_that_were_known_before_do_not(stage: Stage) -> None:
    """A restatement of what an earlier epoch had logged is no progress."""
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    first = await stage.append(request.rid, make_claim(request, "dead-0"))
    await stage.write("dead-0", request.rid, first, 0, ids("ab"))
    claim = make_claim(request, "dead-1", first, after_death=True)
    second = await stage.append(request.rid, claim)
    await stage.write("dead-1", request.rid, second, 0, ids("ab"))
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken)
    assert [crash.worker for crash in taken.crashes] == ["dead-1"]


async def test_a_crash_alone_is_the_last(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    last = await crash_before(stage, request, 3)
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken), "never alone: three crashes are not enough"
    claimer = make_claimer(stage, "w2")
    delivery = await stage.redeliver(delivery)
    flow = claimer.flow(request, delivery)
    taken = await claimer.take(flow)
    assert isinstance(taken, Taken)
    assert isinstance(await claimer.claim_alone(flow, flow.claim_alone()), SeeRoom)
    assert flow.taken.epoch > taken.epoch > last
    result = await take_by(make_claimer(stage, "w3"), request, await stage.redeliver(delivery))
    assert isinstance(result, GivenUp)
    assert [crash.was_alone for crash in result.crashes] == [False] * 4 + [True]


async def test_the_engine_that_dies_while_a_claim_is_on_its_way_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine starts a first delivery before the claim is stored."""
    request = make_request()
    async with running_worker(stage) as worker:
        take = worker.runner.claims.taker._claimer.take

        async def take_while_the_engine_dies(*args: object) -> object:
            result = await take(*args)  # type: ignore[arg-type]
            worker.engine.die()
            await eventually(lambda: worker.held[0].is_revoked)
            return result

        monkeypatch.setattr(worker.runner.claims.taker._claimer, "take", take_while_the_engine_dies)
        await stage.submit(request)
        await eventually_async(lambda: _has_records(stage, request.rid, 2))
    release = (await stage.records(request.rid))[1].record
    assert isinstance(release, Release)
    assert release.crashed


async def _has_records(stage: Stage, rid: str, num_records: int) -> bool:
    return len(await stage.records(rid)) >= num_records


async def test_an_engine_that_fails_while_it_runs_is_started_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is killed: only before it was ready is a failure that of the configuration."""
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await eventually(lambda: _alone_runs(worker) == 1)
        worker.engine._on_event(EngineFailed("IndexError: a prompt that nobody thought of"))
        worker.engine.die()
        await worker.next_engine()
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert await kinds(stage, request.rid) == [Claim, Release, Claim]


# Quarantine


async def test_a_suspect_runs_alone_until_it_has_made_progress(stage: Stage) -> None:
    neighbour, late = make_request(), make_request()
    async with running_worker(stage) as worker, running_worker(stage, is_ready=False) as other:
        suspect = make_request()
        await crash_before(stage, suspect, 2, request_seq=2)
        await stage.submit(neighbour)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(neighbour.rid, 2)
        await stage.submit(suspect)
        early = await worker.engine.next_run()  # a first delivery: its past is not known yet
        await eventually(lambda: early.run_id in worker.engine.aborted)
        alone = await worker.engine.next_run()
        assert worker.engine.active == {alone.run_id}, "the neighbour has been handed over"
        assert worker.count("requests.quarantines") == 1
        assert worker.runner.parts.capacity.num_credits() == 0
        await stage.submit(late)
        other.engine.become_ready()  # whoever else there is gets all the others
        runs = [await other.engine.next_run() for _ in range(2)]
        assert sorted(output_of(run) for run in runs) == [[], ids("ab")]
        assert worker.engine.active == {alone.run_id}
        worker.engine.emit(alone.run_id, ids("x"))
        await eventually(lambda: not worker.runner.parts.capacity.is_quarantined)
        for run in runs:
            other.engine.emit(run.run_id, ids("c"), STOP)
        worker.engine.emit(alone.run_id, ids("y"), STOP)
        assert (await stage.until_finished(suspect.rid)).tokens == ids("xy")
        assert (await stage.until_finished(neighbour.rid)).tokens == ids("abc")
        await stage.until_queue_is_empty()
        await worker.until_idle()
    records = await stage.records(suspect.rid)
    assert [getattr(stored.record, "is_alone", None) for stored in records] == [False] * 3 + [True]


async def test_a_suspect_that_restates_its_tokens_is_not_acquitted(stage: Stage) -> None:
    """They were made before the workers crashed."""
    suspect = make_request()
    first = await stage.append(suspect.rid, make_claim(suspect, "dead-0"))
    await stage.write("dead-0", suspect.rid, first, 0, ids("ab"))
    last = first
    for worker_id in ("dead-1", "dead-2"):
        claim = make_claim(suspect, worker_id, last, after_death=True)
        last = await stage.append(suspect.rid, claim)
    await stage.submit(suspect)
    async with running_worker(stage) as worker:
        await worker.engine.next_run()  # a first delivery: its past is not known yet
        alone = await worker.engine.next_run()
        assert output_of(alone) == ids("ab")

        async def is_restated() -> bool:
            return any(entry.epoch > last for _, entry in await stage.entries(suspect.rid))

        await eventually_async(is_restated)
        assert worker.runner.parts.capacity.is_quarantined
        worker.engine.emit(alone.run_id, ids("c"))
        await eventually(lambda: not worker.runner.parts.capacity.is_quarantined)
        worker.engine.emit(alone.run_id, ids("d"), STOP)
        assert (await stage.until_finished(suspect.rid)).tokens == ids("abcd")
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_the_only_worker_quarantines_and_goes_on_with_the_others(stage: Stage) -> None:
    neighbour = make_request()
    async with running_worker(stage) as worker:
        suspect = make_request()
        await crash_before(stage, suspect, 2, request_seq=2)
        await stage.submit(neighbour)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(neighbour.rid, 2)
        await stage.submit(suspect)
        await worker.engine.next_run()
        alone = await worker.engine.next_run()
        worker.engine.emit(alone.run_id, ids("x"), STOP)
        again = await worker.engine.next_run()
        assert output_of(again) == ids("ab")
        worker.engine.emit(again.run_id, ids("c"), STOP)
        await stage.until_queue_is_empty()
        assert (await stage.fold(neighbour.rid)).tokens == ids("abc")
        await worker.until_idle()
    released = [
        stored.record
        for stored in await stage.records(neighbour.rid)
        if isinstance(stored.record, Release)
    ]
    assert released
    assert not any(release.crashed for release in released)


async def test_a_neighbour_that_ends_within_a_moment_stays(stage: Stage) -> None:
    neighbour = make_request()
    async with running_worker(stage) as worker:
        suspect = make_request()
        await crash_before(stage, suspect, 2, request_seq=2)
        await stage.submit(neighbour)
        run = await worker.engine.next_run()
        await stage.submit(suspect)
        await eventually(lambda: worker.runner.parts.capacity.is_quarantined)
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await worker.engine.next_run()
        alone = await worker.engine.next_run()
        worker.engine.emit(alone.run_id, ids("x"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert await kinds(stage, neighbour.rid) == [Claim]


async def test_two_suspects_run_one_after_the_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.claims.quarantine._AGAIN_S", 0.1)
    suspects = [make_request(), make_request()]
    async with running_worker(stage, is_ready=False) as worker:
        for seq, suspect in enumerate(suspects, start=1):
            await crash_before(stage, suspect, 2, request_seq=seq)
            await stage.submit(suspect)
        worker.engine.become_ready()
        for _ in suspects:
            await eventually(lambda: _alone_runs(worker) == 1)
            [run_id] = worker.engine.active
            await time_to_err(0.3)
            assert worker.engine.active == {run_id}, "nothing joins it"
            worker.engine.emit(run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    for suspect in suspects:
        assert (await stage.fold(suspect.rid)).tokens == ids("a")


async def test_many_suspects_are_not_tried_one_by_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers died that held all of them: hardly any is guilty."""
    monkeypatch.setattr("worker.claims.quarantine._AGAIN_S", 0.1)
    suspects = [make_request() for _ in range(40)]
    for seq, suspect in enumerate(suspects, start=1):
        await crash_before(stage, suspect, 2, request_seq=seq)
        await stage.submit(suspect)
    async with running_worker(stage) as worker:
        finishing = asyncio.create_task(_finish_all(worker))
        await stage.until_queue_is_empty()
        finishing.cancel()
        await worker.until_idle()
        num_alone = worker.count("requests.quarantines")
    assert num_alone <= 8
    for suspect in suspects:
        assert (await stage.fold(suspect.rid)).tokens == ids("a")


async def _finish_all(worker: RunningWorker) -> None:
    while True:
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)


def _alone_runs(worker: RunningWorker) -> int:
    return sum(held.state is HoldState.RUNNING for held in worker.held)


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_drain_ends_a_quarantine(stage: Stage, is_started: bool) -> None:
    neighbour = make_request()
    async with running_worker(stage) as worker:
        suspect = make_request()
        await crash_before(stage, suspect, 2, request_seq=2)
        await stage.submit(neighbour)
        await worker.engine.next_run()
        await stage.submit(suspect)
        if is_started:
            await eventually(lambda: _alone_runs(worker) == 1 and len(worker.held) == 1)
        else:
            await eventually(lambda: worker.runner.parts.capacity.is_quarantined)
        await worker.stop()
        worker.assert_nothing_held()
    last = (await stage.records(suspect.rid))[-1].record
    assert isinstance(last, Release)
    assert not last.crashed
    assert await stage.num_queued() == 2


async def test_a_cancelled_suspect_leaves_the_quarantine(stage: Stage) -> None:
    suspect = await make_suspect(stage)
    async with running_worker(stage) as worker:
        await eventually(lambda: _alone_runs(worker) == 1)
        await stage.cluster.ownership.end(suspect.rid, End(0, FinishReason.CANCEL, by="f"))
        await worker.runner.parts.settler.settle_ended(worker.held[0])
        await eventually(lambda: not worker.runner.parts.capacity.is_quarantined)
        await stage.until_queue_is_empty()
        await worker.until_idle()


# The end


async def test_the_third_crash_ends_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        for num_engines in (1, 2, 3):
            await eventually(lambda: _alone_runs(worker) == 1)
            assert len(worker.engines) == num_engines
            assert worker.runner.parts.capacity.is_quarantined == (num_engines == 3)
            worker.engine.die()
            await worker.next_engine()
        fold = await stage.until_finished(request.rid)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.count("requests.poison_ends") == 1
        assert worker.count("requests.quarantines") == 1
        worker_id = worker.id
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.POISON
    assert request.rid in (fold.finish.message or "")
    [dead] = await dead_requests(stage)
    assert (dead.rid, dead.pool, dead.job_class) == (request.rid, request.pool, "interactive")
    assert [crash.worker for crash in dead.crashes] == [worker_id] * 3
    assert [crash.was_alone for crash in dead.crashes] == [False, False, True]
    assert all(crash.engine_only for crash in dead.crashes)


async def test_neighbours_of_all_crashes_are_never_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests die together, three times in a row; then one of them makes a token."""
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    monkeypatch.setattr("worker.claims.quarantine._AGAIN_S", 0.1)
    poison = make_request(cache_salt="poison")
    innocent = make_request(cache_salt="innocent")
    async with running_worker(stage) as worker:
        await stage.submit(poison)
        await stage.submit(innocent)
        for _ in range(2):
            await eventually(lambda: _alone_runs(worker) == 2)
            worker.engine.die()
            await worker.next_engine()
        async for _ in Looks(60):
            if not await stage.num_queued():
                break
            running = [held for held in worker.held if held.state is HoldState.RUNNING]
            assert len(running) <= 1, "both are suspects now"
            if running and running[0].rid == poison.rid:
                worker.engine.die()
                await worker.next_engine()
            elif running:
                worker.engine.emit(running[0].run_id, ids("a"), STOP)
                await eventually(lambda: not _alone_runs(worker))
        await worker.until_idle()
    assert (await stage.fold(innocent.rid)).finish == STOP
    assert [dead.rid for dead in await dead_requests(stage)] == [poison.rid]


async def test_dying_between_copy_and_end_repeats_no_copy(stage: Stage) -> None:
    suspect = make_request()
    last = await crash_before(stage, suspect, 2)
    alone = make_claim(suspect, "dead-2", last, after_death=True, is_alone=True)
    await stage.append(suspect.rid, alone)
    async with running_worker(stage) as first, running_worker(stage, is_ready=False) as second:
        is_copied = asyncio.Event()

        async def hang(*args: object) -> None:
            is_copied.set()
            await asyncio.Event().wait()

        first.runner.parts.settler.end = hang  # type: ignore[assignment]
        await stage.submit(suspect)
        await is_copied.wait()
        delivery = first.held[0].delivery
        await first.kill()
        assert len(await dead_requests(stage)) == 1
        assert (await stage.fold(suspect.rid)).finish is None
        second.engine.become_ready()
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        fold = await stage.until_finished(suspect.rid)
        await stage.until_queue_is_empty()
        await second.until_idle()
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.POISON
        [stored] = await DeadRequests(stage.cluster).all()
        assert len(stored.seqs) == 1


async def test_the_oldest_copies_make_room_for_the_next(stage: Stage) -> None:
    stream = stage.cluster.subjects.dead_stream
    info = await stage.cluster.js.api(f"STREAM.INFO.{stream}")
    await stage.cluster.js.api(f"STREAM.UPDATE.{stream}", {**info["config"], "max_bytes": 3000})
    suspects = [make_request(prompt_ids=bytes(1000)) for _ in range(3)]
    async with running_worker(stage) as worker:
        for number, suspect in enumerate(suspects, start=1):
            last = await crash_before(stage, suspect, 2, request_seq=number)
            alone = make_claim(
                suspect, "dead-2", last, request_seq=number, after_death=True, is_alone=True
            )
            await stage.append(suspect.rid, alone)
            await stage.submit(suspect)
            await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.count("requests.dead_discarded") == 2
    assert [dead.rid for dead in await dead_requests(stage)] == [suspects[2].rid]
    for suspect in suspects:
        finish = (await stage.fold(suspect.rid)).finish
        assert finish is not None
        assert finish.reason is FinishReason.POISON


async def test_a_full_object_store_keeps_no_dead_request_from_its_end(stage: Stage) -> None:
    """Its long prompt has no room for a copy: the rest of it is kept, and says so."""
    suspect = make_request(prompt_ids=b"", prompt_object="prompt-1")
    last = await crash_before(stage, suspect, 2)
    alone = make_claim(suspect, "dead-2", last, after_death=True, is_alone=True)
    await stage.append(suspect.rid, alone)
    objects = stage.cluster.objects(stage.cluster.subjects.objects_bucket)
    await objects.put("prompt-1", bytes(1000))
    await fill(stage.cluster.js, "OBJ_jf_objects", 1.0)
    async with running_worker(stage) as worker:
        await stage.submit(suspect)
        fold = await stage.until_finished(suspect.rid)
        await stage.until_queue_is_empty()

        async def is_gone() -> bool:
            return await objects.find("prompt-1") is None

        await eventually_async(is_gone)  # what is over gives its room back
        await worker.until_idle()
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.POISON
    [dead] = await dead_requests(stage)
    assert (dead.rid, dead.prompt_object) == (suspect.rid, "")
