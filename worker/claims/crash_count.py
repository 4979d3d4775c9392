"""How often workers died under a request that had made no progress there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shared.protocol.dead import Crash
from shared.protocol.log_records import Claim, OwnershipRecord, Release
from shared.token_log.ownership import StoredRecord

QUARANTINE_CRASHES = 2
POISON_CRASHES = 3


def crashes_in_a_row(records: Sequence[StoredRecord], progress_epoch: int) -> tuple[Crash, ...]:
    """Since the last epoch that made progress; `records` are the whole ownership log, the claim
    that asks included, and `progress_epoch` comes from the fold up to that claim.
    """
    crashes = []
    for stored, after in pairwise(records):
        claim = stored.record
        if isinstance(claim, Claim) and stored.seq > progress_epoch and _tells_crash(after.record):
            crashes.append(
                Crash(
                    worker=claim.worker,
                    claimed_at=stored.time.timestamp(),
                    noticed_at=after.time.timestamp(),
                    was_alone=claim.is_alone,
                    engine_only=isinstance(after.record, Release),
                )
            )
    return tuple(crashes)


def is_poison(crashes: Sequence[Crash]) -> bool:
    """Enough crashes, and one of them with nobody else to blame."""
    return len(crashes) >= POISON_CRASHES and any(crash.was_alone for crash in crashes)


def is_suspect(crashes: Sequence[Crash]) -> bool:
    """To be run alone."""
    return len(crashes) >= QUARANTINE_CRASHES


def _tells_crash(record: OwnershipRecord) -> bool:
    """Of the epoch before this record."""
    match record:
        case Claim():
            return record.after_death
        case Release():
            return record.crashed
    return False
