"""Which records of an ownership log tell a crash, and which requests are to blame."""

from __future__ import annotations

import datetime

import pytest

from shared.protocol.log_records import Claim, OwnershipRecord, Release
from shared.token_log.ownership import StoredRecord
from tests.worker.io_stage import make_claim, make_request
from worker.claims.earlier_records import crashes_in_a_row, is_poison, is_suspect

NO_PROGRESS = 0


def claim(worker: str, *, after_death: bool = False, is_alone: bool = False) -> Claim:
    return make_claim(make_request(), worker, after_death=after_death, is_alone=is_alone)


def release(*, crashed: bool) -> Release:
    return Release(0, "w", crashed=crashed)


def log_of(*records: OwnershipRecord) -> list[StoredRecord]:
    """Stored at 10, 20, 30, ..., the last one is the claim that asks."""
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return [
        StoredRecord(10 * idx, start + datetime.timedelta(seconds=idx), record)
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


def test_who_was_never_alone_is_never_condemned() -> None:
    """Nine workers died under it, and somebody else may have done it each time."""
    records = [claim("first"), *(claim(f"w{n}", after_death=True) for n in range(9))]
    crashes = crashes_in_a_row(log_of(*records), NO_PROGRESS)
    assert len(crashes) == 9
    assert not is_poison(crashes)


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_third_crash_condemns_who_was_alone(is_alone: bool) -> None:
    records = (
        claim("a"),
        claim("b", after_death=True),
        claim("c", after_death=True),
        claim("c", is_alone=is_alone),
        claim("d", after_death=True),
    )
    assert dead_workers(*records) == ["a", "b", "c"]
    assert is_poison(crashes_in_a_row(log_of(*records), NO_PROGRESS)) is is_alone


def test_two_crashes_do_not_condemn_even_alone() -> None:
    records = (claim("a", is_alone=True), claim("b", after_death=True, is_alone=True))
    crashes = crashes_in_a_row(log_of(*records, claim("c", after_death=True)), NO_PROGRESS)
    assert len(crashes) == 2
    assert not is_poison(crashes)
