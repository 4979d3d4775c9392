"""Which workers send pages of keys and values over TCP, and by which key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.errors import ConfigError, ProtocolError
from shared.protocol.codec import decode, encode
from shared.protocol.notices import PagesKey
from shared.protocol.role_cards import WorkerCard
from shared.subjects import Subjects
from shared.telemetry.log import get_logger
from worker.engine_link.engine_messages import PagePeer
from worker.transfer.page_server import PageServer
from worker.transfer.page_wire import Endpoint

_ANSWER_S = 0.5
_ASKED_AT_ONCE = 16

log = get_logger(__name__)


def mark_of(place: str) -> str:
    """What pages there have in common with those of all engines that compute the same bits."""
    return place.rpartition("-")[2]


class PagePeers:
    """The workers that send pages, by the places that they read them from; and this one, if it
    does.

    A key is asked for over NATS, on a subject that only workers may hear, when a card names where a
    worker listens that named no such address before. Who does not answer is asked at the next look.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        pool: str,
        worker_id: str,
        server: PageServer | None,
    ) -> None:
        self.server = server
        self._nc = nc
        self._subjects = subjects
        self._pool = pool
        self._worker_id = worker_id
        self._inbox = f"{subjects.inbox_prefix('worker')}."
        self._keys: dict[tuple[str, str], bytes] = {}  # by worker and address
        self._places: dict[str, PagePeer] = {}
        self._workers: dict[str, PagePeer] = {}
        self.place = ""  # of the engine's own pages; "": there is none

    @property
    def address(self) -> str:
        """Where this worker sends pages; "": nowhere."""
        return "" if self.server is None else str(self.server.endpoint)

    @property
    def key_subject(self) -> str:
        return self._subjects.pages_key(self._pool, self._worker_id)

    async def on_key_question(self, message: Msg) -> None:
        """From another worker: whoever else asks is told nothing."""
        if self.server is None or not message.reply.startswith(self._inbox):
            return
        with contextlib.suppress(NatsError):
            await message.respond(encode(PagesKey(self.server.key)))

    def on_ready(self, place: str) -> None:
        """The engine's pages are there."""
        self.place = place
        if self.server is not None and place:
            self.server.mark = mark_of(place)

    def at(self, place: str) -> PagePeer | None:
        """Whom to ask for pages that are there; None: nobody is known, or they are others."""
        return self._places.get(place) if mark_of(place) == mark_of(self.place) else None

    @property
    def is_there_any(self) -> bool:
        return bool(self._workers)

    def of(self, worker: str) -> PagePeer | None:
        """How to ask this worker for pages; None: it sends none, or others, or they are here."""
        return self._workers.get(worker)

    async def learn(self, cards: Sequence[WorkerCard]) -> None:
        """These other workers are there."""
        sending = {
            (card.worker, card.sends_pages_at): card for card in cards if card.sends_pages_at
        }
        new = [each for each in sending if each not in self._keys][:_ASKED_AT_ONCE]
        keys = await asyncio.gather(*(self._ask(worker) for worker, _ in new))
        self._keys = {each: key for each, key in self._keys.items() if each in sending} | {
            each: key for each, key in zip(new, keys, strict=True) if key is not None
        }
        peers = {
            worker: PagePeer(address, key)
            for (worker, address), key in self._keys.items()
            if _is_address(address)
        }
        places = {card.worker: card.pages for card in sending.values()}
        self._places = {places[worker]: peer for worker, peer in peers.items()}
        self._workers = {
            worker: peer
            for worker, peer in peers.items()
            if places[worker] != self.place and mark_of(places[worker]) == mark_of(self.place)
        }

    async def _ask(self, worker: str) -> bytes | None:
        try:
            subject = self._subjects.pages_key(self._pool, worker)
            answer = await self._nc.request(subject, b"", _ANSWER_S)
            return decode(PagesKey, answer.data).key
        except (NatsError, ProtocolError) as exc:
            log.info("pages_key_not_told", worker=worker, error=repr(exc))
            return None


def _is_address(text: str) -> bool:
    with contextlib.suppress(ConfigError):
        return Endpoint.parse(text).port > 0
    return False
