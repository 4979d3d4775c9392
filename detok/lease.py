"""The right to publish: a detokenizer's lease, how it is kept, and its tenure of one partition."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nats.aio.client import Client

from detok.owner_table import LONGEST_PERIOD_S, OwnerTable
from shared.errors import BrokerError, CasConflict
from shared.event_wait import beat_s, wait_event
from shared.protocol.leases import LeaseRecord
from shared.storage.streams import LEASE_PERIOD_S
from shared.telemetry.log import get_logger

_RENEWALS = 3  # in a period
_CALMS = 0.8  # how much of the slowest renewal the next one remembers
_RETRY_S = 0.2
_ALONE_PERIOD_S = 3.0  # while no rival waits for the end of it

log = get_logger(__name__)

_Answer = TypeVar("_Answer")


class Link:
    """Our connection to the broker, and which one since the start it is."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc

    @property
    def number(self) -> int:
        """The number of the connection that is there or was there last, from 0 on."""
        return self._nc.stats["reconnects"]

    def is_still(self, number: int) -> bool:
        """Whether the connection of this number is there."""
        return self._nc.is_connected and self.number == number


@dataclass(slots=True, eq=False)
class Lease:
    """Valid until a moment of our monotonic clock, which no rival's clock can reach sooner.

    A rival counts from when it saw the last revision; we count from when we began to write it.
    But a rival need not wait for that when it sees nobody behind the lease, as after the end of a
    connection: so it is valid only on the connection over which it was renewed.
    """

    nonce: str
    link: Link
    revision: int = 0  # 0: not stored yet
    valid_until: float = float("-inf")
    renewed_on: int = 0  # number of the connection

    @property
    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until and self.link.is_still(self.renewed_on)

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
        self.is_alone = False

    def note(self, took_s: float) -> None:
        """From when a renewal was due until it was known to be stored, or given up."""
        self._slowest_s = max(took_s, _CALMS * self._slowest_s)

    @property
    def period_s(self) -> float:
        least_s = _ALONE_PERIOD_S if self.is_alone else LEASE_PERIOD_S
        return min(max(least_s, _RENEWALS * self._slowest_s), LONGEST_PERIOD_S)

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
        link: Link,
        detok_id: str,
        on_valid: Callable[[], None],
        on_ended: Callable[[], None],
        has_presence: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_valid` hears when it may publish again, `on_ended` when the lease is another one.

        `link`: the connection over which `table` writes, and we publish.
        `has_presence`: rivals may ask whether we are there, and believe it when nobody listens.
        """
        self._table = table
        self._link = link
        self._detok_id = detok_id
        self._on_valid = on_valid
        self._on_ended = on_ended
        self._has_presence = has_presence
        self._pace = RenewalPace()
        self.lease = Lease(secrets.token_hex(8), link)
        self._due_at = 0.0
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._asking: asyncio.Timeout | None = None  # until when an answer is waited for

    async def run(self) -> None:
        """Until `stop`."""
        self._due_at = time.monotonic()
        while not self._is_stopping:
            self._wake.clear()
            await self._renew()
            await wait_event(self._wake, max(0.0, self._due_at - time.monotonic()))

    def stop(self) -> None:
        """Return from `run`; a write under way is not cut short."""
        self._is_stopping = True
        self._wake.set()

    def note_rivals(self, *, is_alone: bool) -> None:
        """The first rival need not wait for as long as nobody would have."""
        if self._pace.is_alone and not is_alone:
            self._wake.set()
        self._pace.is_alone = is_alone

    async def on_reconnect(self) -> None:
        """Renew at once: no answer comes any more to what was asked before."""
        if self._asking is not None:
            self._asking.reschedule(asyncio.get_running_loop().time())
        self._wake.set()

    async def give_back(self) -> None:
        """After `run`: it need not expire."""
        self.lease.end()
        try:
            await self._table.remove_lease(self.lease.nonce)
        except BrokerError as exc:
            log.info("lease_left_to_expire", error=str(exc))

    async def _renew(self) -> None:
        lease, due_at = self.lease, self._due_at
        asked_at, asked_on = time.monotonic(), self._link.number
        period_s = self._pace.period_s
        # Rivals may see this renewal, and its period, while its answer is lost.
        lease.valid_until = min(lease.valid_until, asked_at + period_s)
        record = LeaseRecord(
            self._detok_id, lease.nonce, round(period_s * 1000), self._has_presence()
        )
        try:
            write = self._table.write_lease(record, lease.revision)
            lease.revision = await self._answer(write, period_s)
        except CasConflict:
            is_known = await self._find_again()
            self._due_at = time.monotonic() + (0.0 if is_known else _RETRY_S)
        except (BrokerError, TimeoutError) as exc:
            log.warning("lease_not_renewed", error=str(exc) or "no answer in time")
            self._pace.note(time.monotonic() - due_at)
            self._due_at = time.monotonic() + _RETRY_S
        else:
            self._pace.note(time.monotonic() - due_at)
            self._due_at = self._next_due_at(asked_at)
            self._extend(asked_at + period_s, asked_on)

    def _next_due_at(self, asked_at: float) -> float:
        now = time.monotonic()
        if self._pace.is_alone:
            return now + beat_s(self._pace.pause_s)
        return max(asked_at + self._pace.pause_s, now)

    async def _answer(self, request: Awaitable[_Answer], within_s: float) -> _Answer:
        """Raises TimeoutError when none comes in time, or none can come any more."""
        async with asyncio.timeout(within_s) as self._asking:
            try:
                return await request
            finally:
                self._asking = None

    def _extend(self, valid_until: float, renewed_on: int) -> None:
        was_valid = self.lease.is_valid
        self.lease.valid_until = valid_until
        self.lease.renewed_on = renewed_on
        if self.lease.is_valid and not was_valid:
            self._on_valid()

    async def _find_again(self) -> bool:
        """Either an attempt of ours was stored whose answer was lost, or another has ended it.

        False: that could not be told.
        """
        try:
            seen = await self._answer(self._table.lease(self.lease.nonce), self._pace.period_s)
        except (BrokerError, TimeoutError) as exc:
            log.warning("lease_not_read", error=str(exc) or "no answer in time")
            return False
        if seen is not None:
            self.lease.revision = seen.revision
            return True
        log.warning("lease_ended_by_another", nonce=self.lease.nonce)
        self.lease.end()
        self.lease = Lease(secrets.token_hex(8), self._link)
        self._on_ended()
        return True
