"""Which partitions this detokenizer owns: shared out evenly among those that live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nats.aio.msg import Msg

from detok.lease import LeaseKeeper, Link, Tenure
from detok.owner_table import FREE, OwnerSurvey, OwnerTable, nonce_of
from detok.rivals import Rivals, RivalWatch
from shared.broker.jetstream import JetStream
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict
from shared.event_wait import beat_s, wait_event
from shared.nats_client.connection_end import end_subscription
from shared.protocol.leases import PartitionOwner
from shared.telemetry.log import get_logger

_POLL_S = 0.2
_POLL_ALONE_S = 3.0  # while no rival is known, whose first lease would be heard at once
# A partition that nobody took for so long, and a rival's period, is taken beyond the fair share.
_ORPHAN_S = 1.0
_OFFER_S = 30.0  # what is beyond the share is offered so often: some rival takes nothing
_TIMEOUT_S = 4.0
_FRESH_S = 5.0

log = get_logger(__name__)


class PartitionShare:
    """Takes partitions under a lease until stopped, then gives them back.

    A partition is taken by compare-and-set when nobody owns it, or the lease under which it is
    owned has ended. Who finds a lease expired, or its holder gone, ends it first, by
    compare-and-set as well: from then on its holder cannot renew it, however late it wakes up.
    """

    def __init__(
        self,
        cluster: Cluster,
        detok_id: str,
        on_acquired: Callable[[Tenure], None],
        on_lost: Callable[[Tenure], None],
        on_valid: Callable[[], None],
    ) -> None:
        """`on_valid` hears that what is held may be published again."""
        self._cluster = cluster
        self._detok_id = detok_id
        self._on_acquired = on_acquired
        self._on_lost = on_lost
        self._table = OwnerTable(
            JetStream(cluster.nc, _TIMEOUT_S, cluster.js.domain), cluster.subjects
        )
        self._rivals = Rivals()
        self._wake = asyncio.Event()
        self._watch = RivalWatch(cluster, detok_id, self._rivals, self._wake.set)
        self._keeper = LeaseKeeper(
            self._table,
            Link(cluster.nc),
            detok_id,
            on_valid,
            self._on_lease_ended,
            lambda: self._watch.has_presence,
        )
        cluster.reconnects.follow(self._keeper.on_reconnect)
        self._held: dict[int, Tenure] = {}
        self._before: set[int] = set()  # held when the last lease ended: they are still known here
        self._gone: set[str] = set()  # nonces of leases that have ended
        self._free_since: dict[int, float] = {}
        self._others: set[str] = set()
        self._offered_at = float("-inf")
        self._looked_at = float("-inf")  # of the monotonic clock
        self._is_stopping = False
        self._is_blind = False  # the last look failed

    @property
    def is_fresh(self) -> bool:
        """Whether it is known who owns what."""
        return time.monotonic() - self._looked_at < _FRESH_S

    @property
    def orphans(self) -> list[int]:
        """Partitions that nobody owned at the last look."""
        return sorted(self._free_since)

    @property
    def held(self) -> list[Tenure]:
        return list(self._held.values())

    async def run(self) -> None:
        subject = f"$KV.{self._cluster.subjects.owners_bucket}.*"
        subscription = await self._cluster.nc.subscribe(subject, cb=self._on_written)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keeper.run())
                watching = tasks.create_task(self._watch.run())
                while not self._is_stopping:
                    await self._step()
                    await self._wait()
                await asyncio.gather(*map(self._give_back, self.held))
                self._keeper.stop()
                watching.cancel()
            await self._keeper.give_back()
        finally:
            await end_subscription(subscription)

    def stop(self) -> None:
        """Give everything back and return from `run`; no write under way is cut short."""
        self._is_stopping = True
        self._wake.set()

    async def _on_written(self, message: Msg) -> None:
        key = message.subject.rpartition(".")[2]
        if message.data == FREE or self._is_new_rival(key):
            self._wake.set()

    def _is_new_rival(self, key: str) -> bool:
        nonce = nonce_of(key)
        return nonce not in (None, self._keeper.lease.nonce) and nonce not in self._rivals.known

    async def _wait(self) -> None:
        is_alone = not (self._rivals.known or self._free_since or self._is_blind)
        is_calm = is_alone and self._keeper.lease.is_valid
        if await wait_event(self._wake, beat_s(_POLL_ALONE_S) if is_calm else _POLL_S):
            self._wake.clear()

    async def _step(self) -> None:
        lease = self._keeper.lease
        try:
            survey = await self._table.survey()
            await self._seek_missed(survey)
            self._rivals.note(survey, lease.nonce, can_judge=lease.is_valid)
            self._keeper.note_rivals(is_alone=not self._rivals.known)
            if not lease.is_valid:
                return  # it takes nothing, and ends nobody else's
            await self._end_abandoned()
            await self._drop_lost(survey)
            others = self._rivals.living
            fair_share = -(-self._cluster.subjects.num_partitions // (1 + len(others)))
            await self._take(survey, fair_share)
            self._looked_at = time.monotonic()
            await self._maybe_offer(fair_share, is_new=bool(others - self._others))
            self._others = others
            await self._remove_ended(survey)
            self._is_blind = False
        except BrokerError as exc:
            self._is_blind = True
            self._rivals.look_away()
            log.warning("owners_unreachable", error=str(exc))

    async def _seek_missed(self, survey: OwnerSurvey) -> None:
        """A survey may miss a lease that is renewed meanwhile. Raises BrokerError."""
        for nonce in self._rivals.known - survey.leases.keys() - survey.ended:
            lease = await self._table.lease(nonce)
            if lease is not None:
                survey.leases[nonce] = lease

    async def _end_abandoned(self) -> None:
        """Raises BrokerError."""
        left = self._rivals.left_by(self._watch.gone)
        for nonce, lease in (self._rivals.expired | left).items():
            try:
                await self._table.end_lease(nonce, lease.revision)
            except CasConflict:
                continue  # it was renewed just now, or another was faster
            log.info("lease_ended", holder=lease.holder, nonce=nonce, is_gone=nonce in left)
            self._gone.add(nonce)
            self._rivals.note_end(nonce)

    async def _remove_ended(self, survey: OwnerSurvey) -> None:
        """Raises BrokerError."""
        self._gone |= survey.ended
        for nonce in survey.ended:
            await self._table.remove_lease(nonce)
        self._gone &= {seen.owner.nonce for seen in survey.owners.values() if seen.owner}

    async def _drop_lost(self, survey: OwnerSurvey) -> None:
        """What another has taken, or what is gone with the store. Raises BrokerError."""
        for tenure in self.held:
            seen = survey.owners.get(tenure.partition)
            if seen is not None and seen.revision <= tenure.revision:
                continue  # ours, or older than ours
            now = await self._table.owner(tenure.partition)
            if now is None or now.revision != tenure.revision:
                self._lose(tenure)

    async def _take(self, survey: OwnerSurvey, fair_share: int) -> None:
        """Raises BrokerError."""
        now = time.monotonic()
        orphan_s = _ORPHAN_S + self._rivals.longest_period_s
        wanted: dict[int, int] = {}  # partition -> revision of what is said of it
        for partition in await self._free(survey):
            is_orphan = now - self._free_since[partition] > orphan_s
            if len(self._held) + len(wanted) < fair_share or is_orphan:
                seen = survey.owners.get(partition)
                wanted[partition] = 0 if seen is None else seen.revision
        await asyncio.gather(*(self._acquire(*each) for each in wanted.items()))

    async def _free(self, survey: OwnerSurvey) -> list[int]:
        """Those first that were held before: their log need not be read again."""
        partitions = range(self._cluster.subjects.num_partitions)
        free = [p for p in partitions if p not in self._held and await self._is_free(p, survey)]
        now = time.monotonic()
        self._free_since = {p: self._free_since.get(p, now) for p in free}
        return sorted(free, key=lambda partition: partition not in self._before)

    async def _is_free(self, partition: int, survey: OwnerSurvey) -> bool:
        seen = survey.owners.get(partition)
        if seen is None or seen.owner is None:
            return True
        nonce = seen.owner.nonce
        if nonce == self._keeper.lease.nonce or nonce in self._gone:
            return True
        if nonce in survey.leases:
            return False
        if await self._table.lease(nonce) is not None:
            return False
        self._gone.add(nonce)
        return True

    async def _acquire(self, partition: int, revision: int) -> None:
        lease = self._keeper.lease
        owner = PartitionOwner(self._detok_id, lease.nonce)
        try:
            stored = await self._table.write_owner(partition, owner, revision)
        except CasConflict:
            return  # another was faster
        if lease is not self._keeper.lease:
            return  # it has ended meanwhile
        self._free_since.pop(partition, None)
        self._before.discard(partition)
        tenure = self._held[partition] = Tenure(partition, lease, stored)
        log.info("partition_acquired", partition=partition)
        self._on_acquired(tenure)

    async def _maybe_offer(self, fair_share: int, *, is_new: bool) -> None:
        now = time.monotonic()
        if not is_new and now - self._offered_at < _OFFER_S:
            return
        self._offered_at = now
        excess = sorted(self._held)[fair_share:]
        await asyncio.gather(*(self._give_back(self._held[partition]) for partition in excess))

    async def _give_back(self, tenure: Tenure) -> None:
        if tenure.is_over:
            return
        self._lose(tenure)
        try:
            await self._table.write_owner(tenure.partition, None, tenure.revision)
        except BrokerError as exc:
            log.info("partition_left_to_expire", partition=tenure.partition, error=str(exc))

    def _lose(self, tenure: Tenure) -> None:
        if tenure.is_over:
            return
        del self._held[tenure.partition]
        tenure.is_over = True
        log.info("partition_given_up", partition=tenure.partition)
        self._on_lost(tenure)

    def _on_lease_ended(self) -> None:
        self._before = set(self._held)
        for tenure in self.held:
            self._lose(tenure)
        self._wake.set()
