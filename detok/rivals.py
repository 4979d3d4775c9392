"""The other detokenizers: their leases, as this one sees them being renewed, and who is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from detok.owner_table import LeaseSeen, OwnerSurvey
from detok.silent_peers import Patience, SilentPeers
from shared.cluster import Cluster
from shared.event_wait import beat_s
from shared.liveness.heartbeat import SETTLE_S
from shared.liveness.presence import is_absent, present

_SILENT = 0.2  # of its period without a new revision: one that may be asked for is
_TICK_S = 0.1
_TICK_ALONE_S = 1.0
_PATIENCE = Patience(pause_s=0.1, max_pause_s=0.5, absent_s=0.4)


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
        """The longest period of those that live; 0 when none does."""
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


class RivalWatch:
    """Asks for rivals that are silent, while our own connection has been steady.

    The end of a connection is not the end of its process: one that comes back after `absent_s`
    finds its lease ended, as after a renewal that came too late.
    """

    def __init__(
        self, cluster: Cluster, detok_id: str, rivals: Rivals, on_gone: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._detok_id = detok_id
        self._rivals = rivals
        self._on_gone = on_gone
        self._peers = SilentPeers(cluster, _PATIENCE)
        self._reconnected_at = float("-inf")
        self._num_reconnects = cluster.nc.stats["reconnects"]
        self.has_presence = False
        self.gone: set[str] = set()  # holders

    async def run(self) -> None:
        """Until cancelled; this process is there all the while."""
        async with present(self._cluster.nc, self._cluster.subjects, self._detok_id) as heard:
            await self._hear_ourselves(heard)
            async with asyncio.TaskGroup() as questions:
                while True:
                    if self._has_reconnected():
                        self._reconnected_at = time.monotonic()
                        await self._hear_ourselves(heard)
                    await self._look(questions)
                    await asyncio.sleep(_TICK_S if self._rivals.known else beat_s(_TICK_ALONE_S))

    async def _hear_ourselves(self, heard: asyncio.Event) -> None:
        """A user that may not listen must not say that it does."""
        heard.clear()
        await is_absent(self._cluster.nc, self._cluster.subjects, self._detok_id)
        self.has_presence = heard.is_set()

    def _has_reconnected(self) -> bool:
        before, self._num_reconnects = self._num_reconnects, self._cluster.nc.stats["reconnects"]
        return self._num_reconnects != before

    @property
    def is_steady(self) -> bool:
        """Whether those whose connections broke when ours did have had the time to come back."""
        return time.monotonic() - self._reconnected_at > SETTLE_S

    async def _look(self, questions: asyncio.TaskGroup) -> None:
        if not self.is_steady:
            self._peers.forget()
            self.gone = set()
            return
        self.gone = await self._peers.gone(self._rivals.silent, questions)
        if self.gone:
            self._on_gone()
