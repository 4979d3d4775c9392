"""The other detokenizers' leases, as this one has seen them being renewed."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from detok.owner_table import LeaseSeen, OwnerSurvey

_SILENT = 0.2  # of its period without a new revision: one that may be asked for is


@dataclass(slots=True)
class _Watched:
    lease: LeaseSeen
    since: float  # when this revision was seen first, or when we began to see again
    is_renewed: bool  # False: found there, and perhaps left by a dead process
    has_ended: bool = False  # by us; an old answer may still show it

    @property
    def silence_s(self) -> float:
        return time.monotonic() - self.since

    @property
    def has_expired(self) -> bool:
        return not self.has_ended and self.silence_s > self.lease.period_s

    @property
    def is_silent(self) -> bool:
        return not self.has_ended and self.silence_s > _SILENT * self.lease.period_s


class Rivals:
    """A lease has expired when no new revision of it was seen for its period.

    One of a holder that is gone need not expire: nobody renews it.

    Only time counts in which new revisions could have been stored and seen.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] | None = None

    def note(self, survey: OwnerSurvey, my_nonce: str, *, can_judge: bool) -> None:
        """What was just read. `can_judge`: our own lease was renewed all the while."""
        now = time.monotonic()
        before = self._watched or {}
        watched: dict[str, _Watched] = {}
        for nonce, lease in survey.leases.items():
            if nonce == my_nonce:
                continue
            seen = before.get(nonce)
            if seen is None:
                seen = _Watched(lease, now, is_renewed=self._watched is not None)
            elif seen.lease.revision < lease.revision:
                seen = _Watched(lease, now, is_renewed=True)
            elif not can_judge:
                seen.since = now
            watched[nonce] = seen
        self._watched = watched

    def look_away(self) -> None:
        """The table could not be read."""
        for seen in (self._watched or {}).values():
            seen.since = time.monotonic()

    @property
    def known(self) -> set[str]:
        return set(self._watched or {})

    @property
    def living(self) -> set[str]:
        """Nonces of those that are seen to be renewed."""
        return {
            nonce
            for nonce, seen in (self._watched or {}).items()
            if seen.is_renewed and not seen.has_expired and not seen.has_ended
        }

    @property
    def longest_period_s(self) -> float:
        """Of those that live; 0 when none does."""
        watched = self._watched or {}
        return max((watched[nonce].lease.period_s for nonce in self.living), default=0.0)

    @property
    def silent(self) -> set[str]:
        """Holders that were not seen to renew for a moment, and that may be asked for."""
        return {
            seen.lease.holder
            for seen in (self._watched or {}).values()
            if seen.lease.has_presence and seen.is_silent
        }

    def left_by(self, holders: Collection[str]) -> dict[str, LeaseSeen]:
        """Leases of holders that are gone, but for those that were renewed just now."""
        return {
            nonce: seen.lease
            for nonce, seen in (self._watched or {}).items()
            if seen.lease.holder in holders and seen.is_silent
        }

    def note_end(self, nonce: str) -> None:
        """We have ended it."""
        if (seen := (self._watched or {}).get(nonce)) is not None:
            seen.has_ended = True

    @property
    def expired(self) -> dict[str, LeaseSeen]:
        return {
            nonce: seen.lease for nonce, seen in (self._watched or {}).items() if seen.has_expired
        }
