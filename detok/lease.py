"""The right to publish: a detokenizer's lease, how it is kept, and its tenure of one partition."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from detok.owner_table import LONGEST_PERIOD_S, OwnerTable
from shared.errors import BrokerError, CasConflict
from shared.event_wait import wait_event
from shared.protocol.leases import LeaseRecord
from shared.storage.streams import LEASE_PERIOD_S
from shared.telemetry.log import get_logger

_RENEWALS = 3  # in a period
_CALMS = 0.8  # how much of the slowest renewal the next one remembers
_RETRY_S = 0.2

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Lease:
    """Valid until a moment of our monotonic clock, which no rival's clock can reach sooner.

    A rival counts from when it saw the last revision; we count from when we began to write it.
    """

    nonce: str
    revision: int = 0  # 0: not stored yet
    valid_until: float = float("-inf")

    @property
    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until

    def end(self) -> None:
        """Another has ended it, or we have."""
        self.valid_until = float("-inf")


@dataclass(slots=True, eq=False)
class Tenure:
    """A partition that was taken under a lease."""

    partition: int
    lease: Lease
    revision: int  # of the partition's record
    is_over: bool = False  # given back, or taken by another

    @property
    def is_valid(self) -> bool:
        return not self.is_over and self.lease.is_valid


class RenewalPace:
    """A period that fits the link and the machine: some renewals, each as slow as the slowest."""

    def __init__(self) -> None:
        self._slowest_s = 0.0

    def note(self, took_s: float) -> None:
        """From when a renewal was due until it was known to be stored, or given up."""
        self._slowest_s = max(took_s, _CALMS * self._slowest_s)

    @property
    def period_s(self) -> float:
        return min(max(LEASE_PERIOD_S, _RENEWALS * self._slowest_s), LONGEST_PERIOD_S)

    @property
    def pause_s(self) -> float:
        """From the beginning of one renewal to that of the next."""
        return self.period_s / _RENEWALS


class LeaseKeeper:
    """Does nothing but renew: no other work of the table stands before it.

    A lease that is renewed after its end is as good as before, if nobody has ended it meanwhile:
    whoever did has written so, and the renewal is refused.
    """

    def __init__(
        self,
        table: OwnerTable,
        detok_id: str,
        on_valid: Callable[[], None],
        on_ended: Callable[[], None],
        has_presence: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_valid` hears when it may publish again, `on_ended` when the lease is another one.

        `has_presence`: rivals may ask whether we are there, and believe it when nobody listens.
        """
        self._table = table
        self._detok_id = detok_id
        self._on_valid = on_valid
        self._on_ended = on_ended
        self._has_presence = has_presence
        self._pace = RenewalPace()
        self.lease = Lease(secrets.token_hex(8))
        self._due_at = 0.0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`."""
        self._due_at = time.monotonic()
        while not self._stopping.is_set():
            await self._renew()
            await wait_event(self._stopping, max(0.0, self._due_at - time.monotonic()))

    def stop(self) -> None:
        """Return from `run`; a write under way is not cut short."""
        self._stopping.set()

    async def give_back(self) -> None:
        """After `run`: it need not expire."""
        self.lease.end()
        try:
            await self._table.remove_lease(self.lease.nonce)
        except BrokerError as exc:
            log.info("lease_left_to_expire", error=str(exc))

    async def _renew(self) -> None:
        lease, due_at = self.lease, self._due_at
        asked_at = time.monotonic()
        period_s = self._pace.period_s
        # Rivals may see this renewal, and its period, while its answer is lost.
        lease.valid_until = min(lease.valid_until, asked_at + period_s)
        record = LeaseRecord(
            self._detok_id, lease.nonce, round(period_s * 1000), self._has_presence()
        )
        try:
            async with asyncio.timeout(period_s):
                lease.revision = await self._table.write_lease(record, lease.revision)
        except CasConflict:
            is_known = await self._find_again()
            self._due_at = time.monotonic() + (0.0 if is_known else _RETRY_S)
        except (BrokerError, TimeoutError) as exc:
            log.warning("lease_not_renewed", error=str(exc) or "no answer in time")
            self._pace.note(time.monotonic() - due_at)
            self._due_at = time.monotonic() + _RETRY_S
        else:
            self._pace.note(time.monotonic() - due_at)
            self._due_at = max(asked_at + self._pace.pause_s, time.monotonic())
            self._extend(asked_at + period_s)

    def _extend(self, valid_until: float) -> None:
        was_valid = self.lease.is_valid
        self.lease.valid_until = valid_until
        if self.lease.is_valid and not was_valid:
            self._on_valid()

    async def _find_again(self) -> bool:
        """Either an attempt of ours was stored whose answer was lost, or another has ended it.

        False: that could not be told.
        """
        try:
            async with asyncio.timeout(self._pace.period_s):
                seen = await self._table.lease(self.lease.nonce)
        except (BrokerError, TimeoutError) as exc:
            log.warning("lease_not_read", error=str(exc) or "no answer in time")
            return False
        if seen is not None:
            self.lease.revision = seen.revision
            return True
        log.warning("lease_ended_by_another", nonce=self.lease.nonce)
        self.lease.end()
        self.lease = Lease(secrets.token_hex(8))
        self._on_ended()
        return True
