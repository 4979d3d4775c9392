"""What the ownership log of a request says to a worker that wants to claim it: who holds it, how
often workers died under it, and which weights may go on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, pairwise, zip_longest

import msgspec

from shared.protocol.dead import Crash
from shared.protocol.finish import Cost
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.request import GenerateRequest
from shared.token_log.ownership import StoredRecord
from worker.claims.claim_steps import Over

_MAX_WORKERS = 16  # that are reported of a request's past
QUARANTINE_CRASHES = 2
POISON_CRASHES = 3


@dataclass(frozen=True, slots=True)
class EarlierRecords:
    """All records of one request up to some moment, in order, as a leader has read them."""

    records: list[StoredRecord] = field(default_factory=list)

    @property
    def last(self) -> StoredRecord | None:
        return self.records[-1] if self.records else None

    @property
    def last_seq(self) -> int:
        """What the next record must stand behind; 0: nothing."""
        return self.records[-1].seq if self.records else 0

    @property
    def before_last(self) -> EarlierRecords:
        return EarlierRecords(self.records[:-1])

    def over(self, request_seq: int) -> Over | None:
        """Why nobody need claim the message at `request_seq` of the queue any more, if so."""
        if any(isinstance(stored.record, End) for stored in self.records):
            return Over("it was ended")
        first = next((it.record for it in self.records if isinstance(it.record, Claim)), None)
        if first is not None and first.request_seq != request_seq:
            return Over("it is a duplicate")
        return None

    def has_claim_of(self, nonce: str) -> bool:
        """Whether an earlier try of this claim was stored, although nobody told us."""
        claims = (it.record for it in self.records if isinstance(it.record, Claim))
        return any(claim.nonce == nonce for claim in claims)

    def claim_of(self, nonce: str) -> StoredRecord | None:
        """That claim, if nothing has been stored behind it."""
        last = self.last
        if last is None or not isinstance(last.record, Claim) or last.record.nonce != nonce:
            return None
        return last

    def other_holder(self, worker_id: str) -> Claim | None:
        """The last record, if it is the claim of another worker."""
        last = self.last
        if last is None or not isinstance(last.record, Claim) or last.record.worker == worker_id:
            return None
        return last.record

    @property
    def num_cached_tokens(self) -> int | None:
        """Those of the prompt in its first run, as the last release that knows them says."""
        releases = (it.record for it in reversed(self.records) if isinstance(it.record, Release))
        logged = (release.num_cached_tokens for release in releases)
        return next((num for num in logged if num is not None), None)

    @property
    def workers(self) -> tuple[str, ...]:
        """The last of those who have claimed; two claims in a row of the same one are one."""
        claims = [it.record.worker for it in self.records if isinstance(it.record, Claim)]
        return tuple(worker for worker, _ in groupby(claims))[-_MAX_WORKERS:]


def crashes_in_a_row(records: Sequence[StoredRecord], progress_epoch: int) -> tuple[Crash, ...]:
    """Since the last epoch that made progress; `records` are the whole ownership log, the claim
    that asks included, and `progress_epoch` comes from the fold up to that claim.
    """
    crashes = []
    for stored, after in pairwise(records):
        claim = stored.record
        if (
            isinstance(claim, Claim)
            and stored.seq > progress_epoch
            and _records_crash(after.record)
        ):
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


def cost_before(
    records: Sequence[StoredRecord],
    logged: Cost,
    worker_id: str,
    queued_at: datetime,
    waited_s: float,
) -> Cost:
    """What a request has taken before `worker_id` claims it behind `records`, `waited_s` after it
    was queued. `logged` is by the log: a worker that was killed has logged less than it had.
    """
    if not records:
        return msgspec.structs.replace(logged, queue_s=round(max(0.0, waited_s), 6))
    ages_s = [*((each.time - queued_at).total_seconds() for each in records), waited_s]
    claims = [
        (stored.record.worker, since_s, until_s)
        for stored, since_s, until_s in zip(records, ages_s, ages_s[1:], strict=False)
        if isinstance(stored.record, Claim)
    ]
    workers = [worker for worker, _ in groupby([*(each[0] for each in claims), worker_id])]
    unmeasured_s = 0.0
    if any(
        _leaves_unmeasured(stored, after) for stored, after in zip_longest(records, records[1:])
    ):
        held_s = sum(until_s - since_s for _, since_s, until_s in claims)
        unmeasured_s = max(0.0, held_s - logged.held_s)
    return msgspec.structs.replace(
        logged,
        queue_s=round(max(0.0, claims[0][1] if claims else waited_s), 6),
        unmeasured_s=round(unmeasured_s, 6),
        num_handovers=len(workers) - 1,
    )


def _leaves_unmeasured(stored: StoredRecord, after: StoredRecord | None) -> bool:
    """Whether a claim was followed by another's, and not by its own worker's release."""
    return isinstance(stored.record, Claim) and (
        after is None or (isinstance(after.record, Claim) and not after.record.is_alone)
    )


def is_poison(crashes: Sequence[Crash]) -> bool:
    """Enough crashes, and one of them with nobody else to blame."""
    return len(crashes) >= POISON_CRASHES and any(crash.was_alone for crash in crashes)


def is_suspect(crashes: Sequence[Crash]) -> bool:
    """To be run alone."""
    return len(crashes) >= QUARANTINE_CRASHES


def _records_crash(record: OwnershipRecord) -> bool:
    """Whether this record says that the epoch before it crashed."""
    match record:
        case Claim():
            return record.after_death
        case Release():
            return record.crashed
    return False


def possible_pins(request: GenerateRequest, records: Sequence[StoredRecord]) -> set[str]:
    """Revisions under which tokens may have been logged, as far as the ownership log says: those
    of all claims that were not released without any.
    """
    pin = recorded_pin(records)
    if pin is not None:
        return {_pinned(pin)}
    return {
        revision_of(request, stored.record)
        for stored, after in zip_longest(records, records[1:])
        if isinstance(stored.record, Claim) and not _logged_nothing(after)
    }


def recorded_pin(records: Sequence[StoredRecord]) -> StoredRecord | None:
    """The first release that says which revision is needed, if nobody could go on since then."""
    found = None
    for stored, after in zip_longest(records, records[1:]):
        if isinstance(stored.record, Claim):
            if after is None or not _pinned(after):
                found = None
        elif found is None and _pinned(stored):
            found = stored
    return found


def revision_of(request: GenerateRequest, claim: Claim) -> str:
    """Claims of builds that did not say so were made under the request's own."""
    return claim.revision or request.revision


def pinned_revision(
    request: GenerateRequest, records: Sequence[StoredRecord], progress_epoch: int
) -> str | None:
    """The one that its tokens were made under; None while there are none. All epochs that made
    some have the same one, so that the last decides.
    """
    for stored in records:
        if stored.seq == progress_epoch and isinstance(stored.record, Claim):
            return revision_of(request, stored.record)
    return None


def _pinned(stored: StoredRecord) -> str:
    return stored.record.pinned if isinstance(stored.record, Release) else ""


def _logged_nothing(after: StoredRecord | None) -> bool:
    return after is not None and isinstance(after.record, Release) and not after.record.progressed
