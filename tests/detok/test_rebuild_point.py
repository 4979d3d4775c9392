"""Where a new owner may start reading: it must come to the very same tokens."""

from __future__ import annotations

import random

from hypothesis import given, settings

from detok.decode_status import DecodeStatus, RebuildPoint
from detok.floor_keeper import LowestPoint
from tests.shared.simulated_log import RID, LoggedRecord, SimulatedLog, simulated_logs


def read(log: SimulatedLog, first_seq: int, last_seq: int) -> DecodeStatus:
    """What a detokenizer holds that read [first_seq, last_seq], the ownership log being at hand."""
    status = DecodeStatus(RID, first_seq, is_partial=first_seq > log.items[0].seq)
    for item in log.items:
        if item.seq > last_seq:
            break
        if isinstance(item, LoggedRecord):
            status.apply_record(item.seq, item.record)
        elif item.seq >= first_seq:
            status.apply_entry(item.seq, item.worker, item.entry)
        if item.seq < first_seq:
            status.rebuild_point.restart_at(first_seq)
    return status


@settings(max_examples=3 * settings().max_examples)
@given(simulated_logs())
def test_a_reader_from_the_rebuild_point_holds_the_same(log: SimulatedLog) -> None:
    for item in log.items:
        whole = read(log, 1, item.seq)
        again = read(log, whole.rebuild_point.seq, item.seq)
        assert again.fold.tokens == whole.fold.tokens
        assert again.fold.finish == whole.fold.finish
        # And so does a third one, that takes over from the second.
        third = read(log, again.rebuild_point.seq, item.seq)
        assert third.fold.tokens == whole.fold.tokens
        assert third.fold.finish == whole.fold.finish


@settings(max_examples=3 * settings().max_examples)
@given(simulated_logs())
def test_a_successor_whose_floor_is_old_does_not_raise_it_too_far(log: SimulatedLog) -> None:
    """The floor comes from whoever wrote it last; the reader may be anywhere behind it."""
    last_seq = log.items[-1].seq
    whole_floors = {item.seq: read(log, 1, item.seq).rebuild_point.seq for item in log.items}
    for at, floor in whole_floors.items():
        for now in range(at, last_seq + 1):
            second = read(log, floor, now)
            third = read(log, second.rebuild_point.seq, now)
            assert third.fold.tokens == second.fold.tokens == read(log, 1, now).fold.tokens


@given(simulated_logs())
def test_no_finished_request_is_still_partial_for_a_reader_from_the_floor(
    log: SimulatedLog,
) -> None:
    floor = 1
    for item in log.items:
        status = read(log, floor, item.seq)
        if status.fold.tokens:
            assert not status.is_partial
        floor = status.rebuild_point.seq


def test_a_restatement_counts_when_it_is_complete() -> None:
    point = RebuildPoint(10)
    point.on_counted_entry(10, 0, 100, 100)
    point.on_counted_entry(50, 0, 60, 100)
    assert point.seq == 10
    point.on_counted_entry(51, 60, 100, 100)
    assert point.seq == 50


def test_a_claim_with_tokens_before_it_waits_for_its_prefix() -> None:
    point = RebuildPoint(10)
    point.on_claim(20, 5)
    assert point.seq == 10
    point.on_counted_entry(21, 0, 3, 5)
    assert point.seq == 10
    point.on_counted_entry(22, 3, 6, 6)
    assert point.seq == 21


def test_a_restatement_with_a_hole_does_not_count() -> None:
    point = RebuildPoint(10)
    point.on_counted_entry(10, 0, 6, 6)
    point.on_counted_entry(50, 0, 2, 6)  # what followed was lost
    point.on_counted_entry(52, 6, 7, 7)
    assert point.seq == 10
    point.on_counted_entry(53, 2, 6, 7)  # resent
    point.on_counted_entry(54, 6, 7, 7)
    assert point.seq == 50


def test_an_entry_behind_a_hole_of_the_restatement_completes_nothing() -> None:
    """It counts where it stands, by what was logged before: a reader from here would miss that."""
    point = RebuildPoint(1)
    point.on_counted_entry(2, 0, 4, 4)
    point.on_counted_entry(5, 0, 2, 4)
    point.on_counted_entry(6, 3, 5, 5)
    assert point.seq == 2
    point.on_counted_entry(7, 2, 4, 5)
    point.on_counted_entry(8, 4, 5, 5)
    assert point.seq == 5


def test_the_lowest_point_is_that_of_all_living_requests() -> None:
    rng, requests = random.Random(5), dict[str, DecodeStatus]()
    lowest = LowestPoint(requests)
    for seq in range(1, 3000):
        rid = f"{rng.randrange(400):032x}"  # some live again after they were over
        if rid not in requests:
            requests[rid] = DecodeStatus(rid, rng.randrange(max(1, seq - 50), seq + 1))
            lowest.note(requests[rid])
        elif rng.random() < 0.5 and seq > 1000:
            requests[rid].rebuild_point.seq = seq
        elif requests[rid].rebuild_point.seq > 20:  # one lives from the beginning to the end
            del requests[rid]
        points = [each.rebuild_point.seq for each in requests.values()]
        assert lowest.seq() == min(points, default=None)
        assert len(lowest._noted) <= 2 * 400 + 65
    requests.clear()
    assert lowest.seq() is None
