"""What the ownership log alone says to a worker that wants to claim: without a broker."""

from __future__ import annotations

import datetime

from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.token_log.ownership import StoredRecord
from tests.worker.io_stage import make_claim, make_request
from worker.claims.claim_steps import Over
from worker.claims.earlier_records import EarlierRecords

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
REQUEST = make_request()
END = End(0, FinishReason.CANCEL, by="frontend")


def make_records(*records: OwnershipRecord) -> EarlierRecords:
    """Stored at 10, 20 and so on."""
    stored = [StoredRecord(10 * (idx + 1), NOW, record) for idx, record in enumerate(records)]
    return EarlierRecords(stored)


def claim(worker: str, nonce: str = "n", request_seq: int = 1) -> Claim:
    return make_claim(REQUEST, worker, nonce=nonce, request_seq=request_seq)


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
