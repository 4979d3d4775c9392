"""Where one request stands, and what that makes of what happens to it: without a broker."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from shared.protocol.finish import Finish, FinishReason
from shared.subjects import LANES
from tests.worker.io_stage import ids, make_request
from worker.engine_link.engine_messages import RunOutput
from worker.held.delivery import Delivery
from worker.held.held_request import AfterClaim, HeldRequest, HoldState, LoggedOutput, Redelivery

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
STOP = Finish(FinishReason.STOP)


def make_delivery(request_seq: int = 7, num_delivered: int = 1) -> Delivery:
    return Delivery(b"", "ack", num_delivered, request_seq, NOW, "", LANES[0], 0)


def make_held() -> HeldRequest:
    return HeldRequest(make_request(), make_delivery(), None)


def make_running(epoch: int = 5) -> HeldRequest:
    held = make_held()
    held.run_under(epoch)
    return held


def make_finishing() -> HeldRequest:
    held = make_running()
    held.accept(RunOutput(1, ids("a"), STOP), STOP)
    held.next_entry(0.0)
    return held


# A further delivery


def test_another_message_of_the_same_request_is_a_duplicate_in_every_state() -> None:
    for held in (make_held(), make_running(), make_finishing()):
        assert held.meaning_of(make_delivery(request_seq=8)) is Redelivery.DUPLICATE


def test_while_its_claim_is_on_its_way_a_delivery_needs_no_look_at_the_log() -> None:
    assert make_held().meaning_of(make_delivery(num_delivered=2)) is Redelivery.AWAITED


def test_once_it_is_claimed_the_log_is_asked_whose_it_is() -> None:
    for held in (make_running(), make_finishing()):
        assert held.meaning_of(make_delivery(num_delivered=2)) is Redelivery.DOUBTED


# While the claim is on its way


def test_a_claim_to_which_nothing_happened_runs() -> None:
    assert make_held().after_claim(can_run=True) is AfterClaim.RUN


def test_a_claim_that_comes_to_a_worker_that_cannot_run_is_released() -> None:
    assert make_held().after_claim(can_run=False) is AfterClaim.RELEASE


def test_what_was_revoked_while_claiming_is_released_although_it_could_run() -> None:
    held = make_held()
    held.revoke(has_crashed=False)
    assert held.after_claim(can_run=True) is AfterClaim.RELEASE
    assert not held.has_crashed


@pytest.mark.parametrize("can_run", [False, True])
@pytest.mark.parametrize("is_revoked", [False, True])
def test_an_end_counts_before_all_else(can_run: bool, is_revoked: bool) -> None:
    held = make_held()
    if is_revoked:
        held.revoke(has_crashed=False)
    assert not held.note_end(), "whether the claim is behind it nobody knows yet"
    assert held.after_claim(can_run=can_run) is AfterClaim.LEAVE


def test_an_end_of_what_runs_can_be_settled_at_once() -> None:
    for held in (make_running(), make_finishing()):
        assert held.note_end()
        assert not held.is_ended


def test_a_crash_counts_for_a_request_that_ran_early() -> None:
    held = make_held()
    held.run_id = 3
    held.revoke(has_crashed=True)
    held.revoke(has_crashed=False)  # a drain afterwards takes nothing of it back
    assert held.has_crashed


def test_a_crash_is_not_put_down_to_a_request_that_the_engine_never_had() -> None:
    held = make_held()
    held.revoke(has_crashed=True)
    assert not held.has_crashed


def test_a_crash_is_not_put_down_to_an_early_run_that_was_over() -> None:
    held = make_held()
    held.run_id, held.finish = 3, STOP
    held.revoke(has_crashed=True)
    assert not held.has_crashed


# Under a claim


def test_tokens_made_before_the_claim_go_to_the_log_under_its_epoch() -> None:
    held = make_held()
    held.accept(RunOutput(1, ids("ab")), None)
    held.run_under(5, ("other", "w"), waited_s=30.0)
    assert held.state is HoldState.RUNNING
    assert held.workers == ("other", "w")
    assert held.age_s >= 30.0
    entry = held.next_entry(0.0)
    assert entry is not None
    assert (entry.epoch, entry.position, entry.token_ids) == (5, 0, ids("ab"))


def test_the_entry_with_the_finish_is_the_last_one() -> None:
    held = make_running()
    held.accept(RunOutput(1, ids("a")), None)
    assert held.next_entry(0.0) is not None
    assert held.state is HoldState.RUNNING
    assert held.next_entry(0.0) is None, "the log has all"
    held.accept(RunOutput(1, ids("b"), STOP), STOP)
    entry = held.next_entry(0.0)
    assert entry is not None
    assert (entry.position, entry.token_ids, entry.finish) == (1, ids("b"), STOP)
    assert held.state is HoldState.FINISHING


def test_a_resumed_request_has_progressed_only_beyond_its_prefix() -> None:
    held = make_held()
    held.run_under(9)
    held.resume_from(LoggedOutput(ids("ab"), progress_epoch=4), None)
    held.next_entry(0.0)
    assert (held.num_logged, held.has_progressed) == (2, False)
    held.accept(RunOutput(1, ids("c")), None)
    held.next_entry(0.0)
    assert held.has_progressed


def test_who_watches_a_suspect_hears_that_it_is_gone() -> None:
    held = make_running()
    held.watched = asyncio.Event()
    held.drop()
    assert held.watched.is_set()
    assert (held.state, held.is_active) == (HoldState.DROPPED, False)
