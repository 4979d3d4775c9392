"""What the workers of a pool tell each other of their prefixes."""

from __future__ import annotations

import asyncio
import contextlib

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.nats_client.connection_end import end_subscription
from shared.protocol.codec import decode, encode
from shared.protocol.notices import PrefixNotice
from shared.protocol.prefix_chain import join_hashes, split_hashes
from shared.protocol.role_cards import WorkerCard
from shared.telemetry.log import get_logger
from worker.affinity.pool_prefixes import PoolPrefixes

_INTERVAL_S = 0.02
_MAX_HASHES = 4096  # a message
_LOOK_S = 30.0

log = get_logger(__name__)


class PrefixReporter:
    """Tells new prefixes within 20 ms, unconfirmed, and hears those of the others.

    While no other worker of the pool is known nothing is told: each says that it is there when it
    begins to listen, and hears the latest prefixes of the others then.

    What is missed costs a prefill, until the next look at the worker cards, which carry the latest
    prefixes. The same look forgets workers that are gone.
    """

    def __init__(self, cluster: Cluster, pool: str, worker_id: str, prefixes: PoolPrefixes) -> None:
        self._nc = cluster.nc
        self._malformed = cluster.malformed
        self._subject = cluster.subjects.prefixes(pool)
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._pool = pool
        self._worker_id = worker_id
        self._prefixes = prefixes
        self._peers: set[str] = set()
        self._has_peers = asyncio.Event()

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        subscription = await self._nc.subscribe(self._subject, cb=self._on_gossip)
        try:
            await self._send(PrefixNotice(self._worker_id, b""))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish())
                tasks.create_task(self._look())
        finally:
            await end_subscription(subscription)

    async def _publish(self) -> None:
        while True:
            hashes, sessions = await self._prefixes.next_unpublished()
            await self._has_peers.wait()
            for start in range(0, max(len(hashes), len(sessions)), _MAX_HASHES):
                part = slice(start, start + _MAX_HASHES)
                notice = PrefixNotice(
                    self._worker_id, join_hashes(hashes[part]), join_hashes(sessions[part])
                )
                await self._send(notice)
            await asyncio.sleep(_INTERVAL_S)

    async def _send(self, notice: PrefixNotice) -> None:
        with contextlib.suppress(NatsError):  # the broker is away
            await self._nc.publish(self._subject, encode(notice))

    async def _on_gossip(self, message: Msg) -> None:
        try:
            notice = decode(PrefixNotice, message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.warning("prefix_news_unreadable", error=str(exc))
            return
        if notice.worker == self._worker_id:
            return
        self._peers.add(notice.worker)
        self._has_peers.set()
        if notice.hashes or notice.sessions:
            hashes, sessions = split_hashes(notice.hashes), split_hashes(notice.sessions)
            self._prefixes.learn(notice.worker, hashes, sessions)

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(BrokerError):
                await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Read the worker cards. Raises BrokerError.

        Who speaks for the first time while they are read may have no card among them yet.
        """
        known = self._prefixes.others | self._peers
        cards: list[WorkerCard] = []
        for entry in await self._workers.entries():
            with contextlib.suppress(ProtocolError):  # of a later version
                cards.append(decode(WorkerCard, entry.value))
        others = [
            card for card in cards if card.pool == self._pool and card.worker != self._worker_id
        ]
        present = {card.worker for card in others}
        for worker in known - present:
            self._prefixes.forget(worker)
        self._peers = self._peers - known | present
        if self._peers:
            self._has_peers.set()
        else:
            self._has_peers.clear()
        for card in others:
            if card.prefix_hashes:
                self._prefixes.learn(card.worker, split_hashes(card.prefix_hashes))
