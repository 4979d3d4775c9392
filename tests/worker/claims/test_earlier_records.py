"""What the ownership log alone says to a worker that wants to claim: without a broker."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.token_log.ownership import StoredRecord
from tests.worker.io_stage import make_claim, make_request
from worker.claims.claim_steps import Over
from worker.claims.earlier_records import EarlierRecords, crashes_in_a_row, is_poison, is_suspect

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
REQUEST = make_request()
NO_PROGRESS = 0
END = End(0, FinishReason.CANCEL, by="frontend")


def make_records(*records: OwnershipRecord) -> EarlierRecords:
    """Stored at 10, 20 and so on."""
    stored = [StoredRecord(10 * (idx + 1), NOW, record) for idx, record in enumerate(records)]
    return EarlierRecords(stored)


def claim(worker: str, nonce: str = "n", request_seq: int = 1, **changes: Any) -> Claim:
    return make_claim(REQUEST, worker, nonce=nonce, request_seq=request_seq, **changes)


def test_of_no_records_nothing_follows() -> None:
    past = make_records()
    assert (past.last, past.last_seq, past.workers) == (None, 0, ())
    assert past.over(1) is None
    assert past.claim_of("n") is None
    assert past.other_holder("w") is None


def test_an_end_counts_wherever_it_stands() -> None:
    for records in ((END,), (claim("a"), END), (END, claim("a"))):
        assert make_records(*records).over(1) == Over("it was ended")


def test_the_first_claim_says_which_message_counts() -> None:
    past = make_records(claim("a", request_seq=1), claim("b", request_seq=2))
    assert past.over(1) is None
    assert past.over(2) == Over("it is a duplicate")


def test_what_was_ended_is_no_duplicate() -> None:
    assert make_records(claim("a", request_seq=1), END).over(2) == Over("it was ended")


def test_an_earlier_try_is_ours_while_it_stands_last() -> None:
    past = make_records(claim("a", "other"), claim("w", "ours"))
    ours = past.claim_of("ours")
    assert ours is not None
    assert ours.seq == 20
    assert past.before_last.last_seq == 10
    assert past.claim_of("other") is None


def test_an_earlier_try_with_something_behind_it_is_lost() -> None:
    for after in (claim("b", "other"), Release(10, "detok", False)):
        past = make_records(claim("w", "ours"), after)
        assert past.claim_of("ours") is None
        assert past.has_claim_of("ours")


def test_a_nonce_that_is_not_there_was_never_stored() -> None:
    assert not make_records(claim("a", "other")).has_claim_of("ours")


def test_only_the_last_record_tells_who_holds_it() -> None:
    held = make_records(claim("a"), claim("b"))
    holder = held.other_holder("w")
    assert holder is not None
    assert holder.worker == "b"
    assert held.other_holder("b") is None, "it was this worker itself"
    released = make_records(claim("a"), Release(10, "a", False))
    assert released.other_holder("w") is None


def test_claims_in_a_row_of_one_worker_count_as_one() -> None:
    past = make_records(claim("a"), claim("a"), Release(20, "a", True), claim("b"), claim("a"))
    assert past.workers == ("a", "b", "a")


def test_of_a_long_past_the_last_workers_are_told() -> None:
    past = make_records(*(claim(f"w{idx}") for idx in range(20)))
    assert past.workers == tuple(f"w{idx}" for idx in range(4, 20))


# Crashes


def release(*, crashed: bool) -> Release:
    return Release(0, "w", crashed=crashed)


def log_of(*records: OwnershipRecord) -> list[StoredRecord]:
    """Stored at 10, 20, 30, ..., the last one is the claim that asks."""
    return [
        StoredRecord(10 * idx, NOW + datetime.timedelta(seconds=idx), record)
        for idx, record in enumerate(records, start=1)
    ]


def dead_workers(*records: OwnershipRecord, progress_epoch: int = NO_PROGRESS) -> list[str]:
    crashes = crashes_in_a_row(log_of(*records), progress_epoch)
    return [crash.worker for crash in crashes]


def test_a_first_claim_has_no_crashes() -> None:
    assert dead_workers(claim("a")) == []


def test_a_claim_whose_worker_was_dead_at_the_next_one_is_a_crash() -> None:
    assert dead_workers(claim("a"), claim("b", after_death=True)) == ["a"]


def test_a_takeover_from_a_worker_that_lives_is_none() -> None:
    assert dead_workers(claim("slow"), claim("b")) == []


def test_a_release_is_none_unless_the_engine_died() -> None:
    assert dead_workers(claim("a"), release(crashed=False), claim("b")) == []
    assert dead_workers(claim("a"), release(crashed=True), claim("b")) == ["a"]


def test_a_release_without_progress_does_not_reset() -> None:
    records = (claim("a"), claim("b", after_death=True), release(crashed=False), claim("c"))
    assert dead_workers(*records) == ["a"]


def test_progress_resets_up_to_its_epoch() -> None:
    records = (
        claim("a"),
        claim("b", after_death=True),
        claim("c", after_death=True),
        claim("d", after_death=True),
    )
    assert dead_workers(*records) == ["a", "b", "c"]
    assert dead_workers(*records, progress_epoch=20) == ["c"]
    assert dead_workers(*records, progress_epoch=30) == []


def test_a_crash_says_when_and_how() -> None:
    [crash] = crashes_in_a_row(
        log_of(claim("a", is_alone=True), release(crashed=True), claim("b")), NO_PROGRESS
    )
    assert (crash.worker, crash.was_alone, crash.engine_only) == ("a", True, True)
    assert crash.noticed_at - crash.claimed_at == 1


@pytest.mark.parametrize(("num_crashes", "expected"), [(1, False), (2, True), (3, True)])
def test_two_crashes_make_a_suspect(num_crashes: int, expected: bool) -> None:
    records = [claim("first"), *(claim(f"w{n}", after_death=True) for n in range(num_crashes))]
    assert is_suspect(crashes_in_a_row(log_of(*records), NO_PROGRESS)) is expected


def test_who_was_never_alone_is_never_given_up() -> None:
    """Nine workers died under it, and somebody else may have done it each time."""
    records = [claim("first"), *(claim(f"w{n}", after_death=True) for n in range(9))]
    crashes = crashes_in_a_row(log_of(*records), NO_PROGRESS)
    assert len(crashes) == 9
    assert not is_poison(crashes)


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_third_crash_ends_who_was_alone(is_alone: bool) -> None:
    records = (
        claim("a"),
        claim("b", after_death=True),
        claim("c", after_death=True),
        claim("c", is_alone=is_alone),
        claim("d", after_death=True),
    )
    assert dead_workers(*records) == ["a", "b", "c"]
    assert is_poison(crashes_in_a_row(log_of(*records), NO_PROGRESS)) is is_alone


def test_two_crashes_end_nobody_even_alone() -> None:
    records = (claim("a", is_alone=True), claim("b", after_death=True, is_alone=True))
    crashes = crashes_in_a_row(log_of(*records, claim("c", after_death=True)), NO_PROGRESS)
    assert len(crashes) == 2
    assert not is_poison(crashes)
