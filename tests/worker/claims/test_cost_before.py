"""What a request has taken before it is claimed: as told by the log, and by the times of claims."""

from __future__ import annotations

import datetime

import pytest

from shared.protocol.finish import Cost
from shared.protocol.log_records import OwnershipRecord, Release
from shared.token_log.ownership import StoredRecord
from tests.shared.simulated_log import make_claim
from worker.claims.earlier_records import cost_before

QUEUED_AT = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)
TOLD = Cost(engine_s=1.5, num_computed=7, held_s=3.0)


def at(age_s: float, record: OwnershipRecord) -> StoredRecord:
    return StoredRecord(int(age_s), QUEUED_AT + datetime.timedelta(seconds=age_s), record)


@pytest.mark.parametrize(
    ("records", "told", "expected"),
    [
        ([], Cost(), Cost(queue_s=10.0)),
        # It was killed: between its claim and ours it had 8 s, and has told 3 of them.
        (
            [at(2, make_claim(0, "w1"))],
            TOLD,
            Cost(1.5, 7, queue_s=2.0, held_s=3.0, unmeasured_s=5.0, num_handovers=1),
        ),
        # It was killed before it had told anything.
        (
            [at(2, make_claim(0, "w1"))],
            Cost(),
            Cost(queue_s=2.0, unmeasured_s=8.0, num_handovers=1),
        ),
        # It has handed it over, and told all.
        (
            [at(2, make_claim(0, "w1")), at(6, Release(2, "w1"))],
            TOLD,
            Cost(1.5, 7, queue_s=2.0, held_s=3.0, num_handovers=1),
        ),
        # Only the second of two was killed.
        (
            [at(2, make_claim(0, "w1")), at(5, Release(2, "w1")), at(6, make_claim(5, "w2"))],
            TOLD,
            Cost(1.5, 7, queue_s=2.0, held_s=3.0, unmeasured_s=4.0, num_handovers=2),
        ),
    ],
)
def test_cost_before(records: list[StoredRecord], told: Cost, expected: Cost) -> None:
    assert cost_before(records, told, "w3", QUEUED_AT, 10.0) == expected
