"""What the ownership log of a request says to a worker that wants to claim it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from shared.protocol.log_records import Claim, End
from shared.token_log.ownership import StoredRecord
from worker.claims.claim_steps import Over

_MAX_WORKERS = 16  # that are told of a request's past


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
    def workers(self) -> tuple[str, ...]:
        """The last of those who have claimed; two claims in a row of the same one are one."""
        claims = [it.record.worker for it in self.records if isinstance(it.record, Claim)]
        return tuple(worker for worker, _ in itertools.groupby(claims))[-_MAX_WORKERS:]
