"""A worker gets other weights: emptied first, and never worse than before when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from shared.admin.control import (
    CheckWeights,
    Continue,
    ControlReply,
    ControlRequest,
    Pause,
    PauseMode,
    UpdateWeights,
)
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from shared.protocol.role_cards import WorkerState
from tests.eventually import eventually
from tests.worker.checkpoints import DEMO_MODEL, copy_checkpoint, read_checkpoint
from tests.worker.io_stage import Stage, ids, make_request
from tests.worker.running_worker import RunningWorker, running_worker
from worker.weights.checkpoint import Checkpoint

pytestmark = pytest.mark.integration

LENGTH = Finish(FinishReason.LENGTH)


@pytest.fixture(scope="module")
def served() -> Checkpoint:
    return read_checkpoint(DEMO_MODEL)


@pytest.fixture
async def worker(stage: Stage, served: Checkpoint) -> AsyncIterator[RunningWorker]:
    async with running_worker(stage, checkpoint=served) as running:
        yield running


@pytest.fixture
def other(tmp_path: Path) -> Checkpoint:
    return read_checkpoint(copy_checkpoint(tmp_path / "other"))


async def order(stage: Stage, worker: RunningWorker, request: ControlRequest) -> ControlReply:
    reply = await stage.tell(request, worker.id)
    assert reply.ok, reply.message
    return reply


async def until_replaced(worker: RunningWorker, num_engines: int) -> None:
    await eventually(lambda: len(worker.engines) == num_engines)


async def test_the_next_request_runs_with_the_new_weights(
    stage: Stage, worker: RunningWorker, served: Checkpoint, other: Checkpoint
) -> None:
    assert other.revision != served.revision
    reply = await order(stage, worker, UpdateWeights(str(other.path)))
    assert reply.num_updates == 1
    await until_replaced(worker, 2)
    assert worker.engines[0].is_dead
    assert worker.engine.path == other.path
    card = worker.worker._worker_card()
    assert (card.state, card.revision) == (WorkerState.UPDATING, served.revision)
    request = make_request()
    await stage.submit(request)
    worker.engine.become_ready()
    run = await worker.engine.next_run()
    worker.engine.emit(run.run_id, ids("a"), LENGTH)
    await stage.until_finished(request.rid)
    [claim] = await stage.records(request.rid)
    assert isinstance(claim.record, Claim)
    assert claim.record.revision == other.revision
    card = worker.worker._worker_card()
    assert (card.state, card.revision) == (WorkerState.READY, other.revision)


async def test_the_namespace_of_cached_prefixes_is_the_new_weights(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    await stage.submit(make_request())
    before = await worker.engine.next_run()
    worker.engine.emit(before.run_id, ids("a"), LENGTH)
    await worker.until_idle()
    await order(stage, worker, UpdateWeights(str(other.path)))
    await until_replaced(worker, 2)
    worker.engine.become_ready()
    await stage.submit(make_request())
    assert (await worker.engine.next_run()).options.namespace != before.options.namespace


async def test_running_requests_finish_with_the_old_weights(
    stage: Stage, worker: RunningWorker, served: Checkpoint, other: Checkpoint
) -> None:
    running, waiting = make_request(), make_request()
    await stage.submit(running)
    run = await worker.engine.next_run()
    worker.engine.emit(run.run_id, ids("a"))
    await stage.until_logged(running.rid, 1)
    await order(stage, worker, UpdateWeights(str(other.path), finish_timeout_s=60))
    await eventually(lambda: worker.runner._pulling is None)
    await stage.submit(waiting)
    worker.engine.emit(run.run_id, ids("b"), LENGTH)
    assert (await stage.until_finished(running.rid)).tokens == ids("ab")
    await until_replaced(worker, 2)
    worker.engine.become_ready()
    await worker.engine.next_run()
    [claim] = await stage.records(running.rid)
    assert isinstance(claim.record, Claim)
    assert claim.record.revision == served.revision
    assert worker.engines[0].aborted == []


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_what_does_not_finish_is_handed_over(
    stage: Stage, worker: RunningWorker, other: Checkpoint, is_frozen: bool
) -> None:
    request = make_request()
    await stage.submit(request)
    run = await worker.engine.next_run()
    worker.engine.emit(run.run_id, ids("a"))
    await stage.until_logged(request.rid, 1)
    if is_frozen:
        await order(stage, worker, Pause(PauseMode.FREEZE))
    timeout_s = 600.0 if is_frozen else 0.1
    await order(stage, worker, UpdateWeights(str(other.path), finish_timeout_s=timeout_s))
    await until_replaced(worker, 2)
    assert worker.held == []
    last = (await stage.records(request.rid))[-1].record
    assert isinstance(last, Release)
    assert last.progressed


async def test_a_paused_worker_is_paused_afterwards(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    await order(stage, worker, Pause())
    await order(stage, worker, UpdateWeights(str(other.path)))
    await until_replaced(worker, 2)
    worker.engine.become_ready()
    await eventually(lambda: worker.worker._state is WorkerState.PAUSED)
    assert worker.runner._pulling is None
    await order(stage, worker, Continue())
    await stage.submit(make_request())
    await worker.engine.next_run()


@pytest.mark.parametrize("says_why", [True, False])
async def test_weights_that_cannot_be_loaded_leave_the_old_ones(
    stage: Stage, worker: RunningWorker, served: Checkpoint, other: Checkpoint, says_why: bool
) -> None:
    await order(stage, worker, UpdateWeights(str(other.path)))
    await until_replaced(worker, 2)
    if says_why:
        worker.engine.fail("no memory")
    else:
        worker.engine.die()
    await until_replaced(worker, 3)
    assert worker.engine.path == served.path
    worker.engine.become_ready()
    await eventually(lambda: worker.worker._state is WorkerState.READY)
    card = worker.worker._worker_card()
    assert card.revision == served.revision
    assert card.update_error == (
        "no memory" if says_why else "the engine died while it loaded the weights"
    )
    request = make_request()
    await stage.submit(request)
    await worker.engine.next_run()


async def test_an_engine_that_dies_later_comes_back_with_the_new_weights(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    await order(stage, worker, UpdateWeights(str(other.path)))
    await until_replaced(worker, 2)
    worker.engine.become_ready()
    worker.engine.die()
    await until_replaced(worker, 3)
    assert worker.engine.path == other.path


async def test_while_it_is_updated_other_wishes_are_refused(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    await order(stage, worker, UpdateWeights(str(other.path)))
    for request in (Pause(), Continue(), UpdateWeights(str(other.path))):
        reply = await stage.tell(request, worker.id)
        assert reply.message == "the weights are being updated"
    await until_replaced(worker, 2)


async def test_a_check_tells_the_card_and_changes_nothing(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    reply = await order(stage, worker, CheckWeights(str(other.path)))
    assert reply.card is not None
    made_when_asked = msgspec.structs.replace(reply.card, created=other.card.created)
    assert made_when_asked == other.card
    assert len(worker.engines) == 1


async def test_another_revision_than_expected_is_refused(
    stage: Stage, worker: RunningWorker, other: Checkpoint
) -> None:
    reply = await stage.tell(UpdateWeights(str(other.path), "expected"), worker.id)
    assert f"is revision {other.revision} here, not expected" in reply.message
    assert worker.worker._state is WorkerState.READY


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def forget_a_tensor(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"model.norm.weight", b"model.morn.weight"))


def change_tokenizer(path: Path) -> None:
    file = path / "tokenizer.json"
    file.write_text(file.read_text() + " ")


def remove_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (truncate, r"model.safetensors is cut: it has \d+ bytes, its head says \d+"),
        (forget_a_tensor, "its tensors differ"),
        (remove_weights, "its tensors differ"),
        (change_tokenizer, "another tokenizer"),
        (lambda path: (path / "config.json").unlink(), "has no config.json"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    served: Checkpoint, tmp_path: Path, spoil: object, named: str
) -> None:
    path = copy_checkpoint(tmp_path / "spoilt")
    assert callable(spoil)
    spoil(path)
    with pytest.raises(Exception, match=named):
        served.successor(str(path))


def test_another_shape_is_refused_with_both_values(served: Checkpoint, tmp_path: Path) -> None:
    path = copy_checkpoint(tmp_path / "wide", hidden_size=512)
    with pytest.raises(Exception, match="hidden_size is 512, the served model has 256"):
        served.successor(str(path))
    path = copy_checkpoint(tmp_path / "said", _name_or_path="elsewhere")
    assert served.successor(str(path)).path == path
    with pytest.raises(Exception, match="is not absolute"):
        served.successor("said")


async def test_files_that_changed_under_an_engine_that_died_stop_the_worker(
    stage: Stage, tmp_path: Path
) -> None:
    path = copy_checkpoint(tmp_path / "mine")
    async with running_worker(stage, checkpoint=read_checkpoint(path)) as worker:
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        worker.engine.die()
        async with asyncio.timeout(10):
            await asyncio.wait([worker.task])
        assert "other weights than those" in str(worker.task.exception())
        worker.has_left = True  # its task has failed, as it should
