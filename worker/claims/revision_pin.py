"""Which revision of the weights may go on with a request (docs/protocol.md, "W, revision")."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from shared.protocol.log_records import Claim, Release
from shared.protocol.request import GenerateRequest
from shared.token_log.ownership import StoredRecord


def possible_pins(request: GenerateRequest, records: Sequence[StoredRecord]) -> set[str]:
    """Revisions under which tokens may have been logged, as far as the ownership log tells: those
    of all claims that were not released without any.
    """
    told = pin_told(records)
    if told is not None:
        return {_pinned(told)}
    return {
        revision_of(request, stored.record)
        for stored, after in zip_longest(records, records[1:])
        if isinstance(stored.record, Claim) and not _tells_nothing_logged(after)
    }


def pin_told(records: Sequence[StoredRecord]) -> StoredRecord | None:
    """The first release that says which revision is needed, if nobody could go on since then."""
    told = None
    for stored, after in zip_longest(records, records[1:]):
        if isinstance(stored.record, Claim):
            if after is None or not _pinned(after):
                told = None
        elif told is None and _pinned(stored):
            told = stored
    return told


def revision_of(request: GenerateRequest, claim: Claim) -> str:
    """Claims of builds that did not say so were made under the request's own."""
    return claim.revision or request.revision


def pinned_revision(
    request: GenerateRequest, records: Sequence[StoredRecord], progress_epoch: int
) -> str | None:
    """The one that its tokens were made under; None while there are none. All epochs that made
    some have the same one, so that the last tells it.
    """
    for stored in records:
        if stored.seq == progress_epoch and isinstance(stored.record, Claim):
            return revision_of(request, stored.record)
    return None


def _pinned(stored: StoredRecord) -> str:
    return stored.record.pinned if isinstance(stored.record, Release) else ""


def _tells_nothing_logged(after: StoredRecord | None) -> bool:
    return after is not None and isinstance(after.record, Release) and not after.record.progressed
