"""Who in a pool computes prompts, and who goes on behind them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Sequence

from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.event_wait import beat_s
from shared.liveness.heartbeat import Writability
from shared.protocol.role_cards import WorkerCard, WorkerRole, WorkerState
from shared.telemetry.log import get_logger
from worker.affinity.page_peers import mark_of

_LOOK_S = 1.0
_CARD_S = 1 / 16  # for each card: what all looks cost grows with a pool, not with its square

log = get_logger(__name__)


class PoolRoles:
    """The other workers that are ready, by their cards: looked at each second, in large pools less
    often, where this worker has not both roles, or may fetch pages from others.

    What is believed of them decides who computes, and never what becomes of a request: whoever is
    asked in vain costs a message, and a queue that two pull from is as good as one.
    """

    def __init__(
        self,
        cluster: Cluster,
        pool: str,
        worker_id: str,
        role: WorkerRole,
        heartbeats: Writability,
        *,
        has_pages: bool,
        sends_pages: bool,
    ) -> None:
        self.role = role
        self._is_looking = role != "both" or has_pages
        self._sends_pages = sends_pages
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._pool = pool
        self._worker_id = worker_id
        self._heartbeats = heartbeats
        self._others: list[WorkerCard] = []
        self._num_asked: dict[str, int] = {}  # of those that decode, since the last look
        self._missed: set[str] = set()  # of these, by the last look
        self._num_cards = 0
        self._has_looked = False
        self._has_warned = False

    async def run(self, on_look: Callable[[], Awaitable[None]]) -> None:
        """Look until cancelled."""
        while self._is_looking:
            with contextlib.suppress(BrokerError):
                await self.look()
                await on_look()
            await asyncio.sleep(beat_s(max(_LOOK_S, self._num_cards * _CARD_S)))

    async def look(self) -> None:
        """Raises BrokerError. While heartbeats cannot be written, who is absent may be alive; and a
        look may miss one whose card is written meanwhile, but not two looks.
        """
        found = readable(WorkerCard, await self._workers.entries(f"{self._pool}."))
        self._num_cards = len(found)
        if not self._heartbeats.is_steady:
            return
        cards = {card.worker: card for card in found if card.worker != self._worker_id}
        missed = {card.worker for card in self._others} - cards.keys()
        self._others = [card for card in cards.values() if card.state is WorkerState.READY] + [
            card for card in self._others if card.worker in missed - self._missed
        ]
        self._missed = missed - self._missed
        self._num_asked.clear()
        self._has_looked = True

    @property
    def others(self) -> Sequence[WorkerCard]:
        return self._others

    @property
    def pulls(self) -> bool:
        """Whether this worker takes requests from the queue. One that decodes does so while nobody
        else would.
        """
        if self.role != "decode":
            return True
        return self._has_looked and all(card.role == "decode" for card in self._others)

    def decoder(self, pages: str, revision: str) -> str | None:
        """The one with most room that finds pages where this worker puts them, or fetches them from
        there; None: nobody has.
        """
        rooms = {
            card.worker: card.max_running
            - card.num_running
            - card.num_waiting
            - self._num_asked.get(card.worker, 0)
            for card in self._others
            if card.role == "decode" and card.revision == revision and self._shares(card, pages)
        }
        self._warn_of_strangers(rooms, pages)
        worker = max(rooms, key=lambda worker: rooms[worker], default=None)
        if worker is None or rooms[worker] < 1:
            return None
        self._num_asked[worker] = self._num_asked.get(worker, 0) + 1
        return worker

    def _shares(self, card: WorkerCard, pages: str) -> bool:
        is_sent = self._sends_pages and card.fetches_pages
        return card.pages == pages or (is_sent and mark_of(card.pages) == mark_of(pages))

    def _warn_of_strangers(self, friends: Container[str], pages: str) -> None:
        """Once: workers that decode wait in vain for what this one has."""
        strangers = [card for card in self._others if card.role == "decode"]
        is_alone = bool(strangers) and not any(card.worker in friends for card in strangers)
        if is_alone and not self._has_warned:
            log.warning(
                "decode_workers_have_other_pages",
                workers=[card.worker for card in strangers],
                pages=pages,
                theirs=sorted({card.pages for card in strangers}),
                remedy="equal weights, build and kernels, and one kv_disk_dir or kv_transfer_bind",
            )
        self._has_warned = is_alone

    def forget(self, worker: str) -> None:
        """It has no room, or does not answer: until the next look nobody asks it."""
        self._others = [card for card in self._others if card.worker != worker]
