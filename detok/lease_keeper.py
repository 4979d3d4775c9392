"""Which partitions this detokenizer owns: leases in KV, shared out evenly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from nats.aio.msg import Msg

from detok.live_detoks import LiveDetoks
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict
from shared.event_wait import wait_event
from shared.jetstream import JetStream
from shared.kv_bucket import KvBucket, KvEntry
from shared.log import get_logger
from shared.streams import LEASE_TTL_S

_POLL_S = 0.2
_RENEW_S = 0.4
_ORPHAN_S = 1.0  # a lease that nobody took for so long is taken beyond the fair share
_TIMEOUT_S = 1.0
_FRESH_S = 3.0
FREE = b""  # the value of a lease that was given back

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Lease:
    """The right to publish for a partition, until `valid_until` by the monotonic clock."""

    partition: int
    revision: int
    valid_until: float

    @property
    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until

    @property
    def is_due(self) -> bool:
        return time.monotonic() > self.valid_until - LEASE_TTL_S + _RENEW_S


class LeaseKeeper:
    """Takes and renews leases until stopped, then gives them back.

    A lease is given back by writing the empty value with CAS: a detokenizer that was stopped and
    wakes up cannot take away what belongs to another by now, and those who wait hear it at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        detok_id: str,
        on_acquired: Callable[[Lease], None],
        on_lost: Callable[[Lease], None],
    ) -> None:
        self._cluster = cluster
        self._me = detok_id.encode()
        self._on_acquired = on_acquired
        self._on_lost = on_lost
        js = JetStream(cluster.nc, timeout_s=_TIMEOUT_S)
        self._bucket = KvBucket(js, cluster.subjects.leases_bucket)
        self._live_detoks = LiveDetoks(KvBucket(js, cluster.subjects.roles_bucket), detok_id)
        self._held: dict[int, Lease] = {}
        self._free_since: dict[int, float] = {}
        self._others: set[str] = set()
        self._owners: dict[str, str] = {}  # partition -> another detokenizer, when last looked
        self._looked_at = float("-inf")  # of the monotonic clock
        self._wake = asyncio.Event()
        self._is_stopping = False

    @property
    def is_fresh(self) -> bool:
        """Whether it is known who owns what."""
        return time.monotonic() - self._looked_at < _FRESH_S

    @property
    def orphans(self) -> list[int]:
        """Partitions that nobody owned at the last look."""
        return sorted(self._free_since)

    @property
    def held(self) -> list[Lease]:
        return list(self._held.values())

    async def run(self) -> None:
        subject = f"$KV.{self._cluster.subjects.leases_bucket}.*"
        subscription = await self._cluster.nc.subscribe(subject, cb=self._on_lease_written)
        try:
            while not self._is_stopping:
                await self._step()
                await self._wait()
            await asyncio.gather(*(self._give_back(lease) for lease in self.held))
        finally:
            await subscription.unsubscribe()

    def stop(self) -> None:
        """Give everything back and return from `run`; no write under way is cut short."""
        self._is_stopping = True
        self._wake.set()

    async def _on_lease_written(self, message: Msg) -> None:
        if message.data == FREE:
            self._wake.set()

    async def _wait(self) -> None:
        if await wait_event(self._wake, _POLL_S):
            self._wake.clear()

    async def _step(self) -> None:
        try:
            await asyncio.gather(*(self._renew(lease) for lease in self.held if lease.is_due))
            entries = {entry.key: entry for entry in await self._bucket.entries()}
            self._note_expired(entries)
            others = await self._live_detoks.others()
            fair_share = -(-self._cluster.subjects.num_partitions // (1 + len(others)))
            await self._take(entries, fair_share)
            self._looked_at = time.monotonic()
            if others - self._others:
                # Once for each newcomer: one that takes nothing must not be offered it for ever.
                await self._give_up_excess(fair_share)
            self._others = others
        except BrokerError as exc:
            log.warning("leases_unreachable", error=str(exc))
        for lease in self.held:
            if not lease.is_valid:
                self._lose(lease)

    async def _renew(self, lease: Lease) -> None:
        asked_at = time.monotonic()
        try:
            await self._write(lease, self._me)
        except CasConflict:
            self._lose(lease)
        except BrokerError as exc:
            log.warning("lease_not_renewed", partition=lease.partition, error=str(exc))
        else:
            if lease.is_valid:
                lease.valid_until = asked_at + LEASE_TTL_S
            else:
                self._lose(lease)  # meanwhile nothing was said: acquire anew, and read anew

    async def _write(self, lease: Lease, value: bytes) -> None:
        """Raises CasConflict when it belongs to another, or to nobody."""
        key = str(lease.partition)
        try:
            lease.revision = await self._bucket.put_if(key, value, lease.revision)
        except CasConflict:
            entry = await self._bucket.get(key)
            if entry is None or entry.value != self._me:
                raise
            # An earlier attempt of ours was stored, and its answer was lost.
            lease.revision = await self._bucket.put_if(key, value, entry.revision)

    def _note_expired(self, entries: dict[str, KvEntry]) -> None:
        """Whoever let a lease expire is dead sooner than its heartbeat tells: share without it."""
        for key, owner in self._owners.items():
            if key not in entries:
                self._live_detoks.doubt(owner)
        self._owners = {
            key: entry.value.decode(errors="replace")
            for key, entry in entries.items()
            if entry.value not in (FREE, self._me)
        }

    async def _take(self, entries: dict[str, KvEntry], fair_share: int) -> None:
        now = time.monotonic()
        for partition in range(self._cluster.subjects.num_partitions):
            entry = entries.get(str(partition))
            is_free = entry is None or entry.value in (FREE, self._me)
            if partition in self._held or not is_free:
                self._free_since.pop(partition, None)
                continue
            is_orphan = now - self._free_since.setdefault(partition, now) > _ORPHAN_S
            if len(self._held) < fair_share or is_orphan:
                await self._acquire(partition, 0 if entry is None else entry.revision)

    async def _acquire(self, partition: int, revision: int) -> None:
        asked_at = time.monotonic()
        try:
            stored = await self._bucket.put_if(str(partition), self._me, revision)
        except CasConflict:
            return  # another was faster
        self._free_since.pop(partition, None)
        lease = Lease(partition, stored, asked_at + LEASE_TTL_S)
        self._held[partition] = lease
        log.info("partition_acquired", partition=partition)
        self._on_acquired(lease)

    async def _give_up_excess(self, fair_share: int) -> None:
        for partition in sorted(self._held)[fair_share:]:
            await self._give_back(self._held[partition])

    async def _give_back(self, lease: Lease) -> None:
        self._lose(lease)
        try:
            await self._write(lease, FREE)
        except BrokerError as exc:
            log.info("lease_left_to_expire", partition=lease.partition, error=str(exc))

    def _lose(self, lease: Lease) -> None:
        if self._held.pop(lease.partition, None) is None:
            return
        lease.valid_until = 0.0
        log.info("partition_given_up", partition=lease.partition)
        self._on_lost(lease)
