"""Ends the requests of frontends that have died, unless their clients resumed elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter

from frontend.attachments import Attachments, concerns
from frontend.frontend_role import ROLE
from frontend.terminator import Terminator
from shared.cluster import Cluster
from shared.codec import decode
from shared.errors import BrokerError, CasConflict, ProtocolError
from shared.log import get_logger
from shared.protocol.finish import FinishReason
from shared.protocol.reply import ReplyParams
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import RoleCard

_POLL_S = 1.0
_MISSED_POLLS = 2
_LOCK_PREFIX = "orphans."

log = get_logger(__name__)


class OrphanSweeper:
    """Watches the heartbeats of the other frontends.

    A message stays in the queue's stream until its request has finished, so the stream names all
    requests of a dead frontend, queued and running. Sweeping twice is harmless: `end` is written
    once.
    """

    def __init__(
        self,
        cluster: Cluster,
        terminator: Terminator,
        attachments: Attachments,
        frontend_id: str,
        wait_s: float,
    ) -> None:
        self._cluster = cluster
        self._terminator = terminator
        self._frontend_id = frontend_id
        self._wait_s = wait_s
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._attachments = attachments
        self._missed: Counter[str] = Counter()  # polls, by a frontend that was once seen
        self._sweeping: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._note_earlier_frontends())
            while True:
                for dead_id in await self._newly_dead():
                    self._sweeping.add(dead_id)
                    tasks.create_task(self._sweep_later(dead_id))
                await asyncio.sleep(_POLL_S)

    async def _note_earlier_frontends(self) -> None:
        """Frontends that died when nobody looked are seen in the queue."""
        try:
            for request in await self._requests():
                self._missed.setdefault(request.reply.frontend_id, 0)
        except BrokerError as exc:
            log.warning("queue_not_read", error=str(exc))

    async def _newly_dead(self) -> list[str]:
        try:
            alive = await self._alive()
        except BrokerError:
            return []  # who cannot see, cannot judge
        for frontend_id in alive:
            self._missed[frontend_id] = 0
        self._missed.pop("", None)
        for frontend_id in self._missed.keys() - alive:
            self._missed[frontend_id] += 1
        return [
            frontend_id
            for frontend_id, missed in self._missed.items()
            if missed >= _MISSED_POLLS and frontend_id not in self._sweeping
        ]

    async def _alive(self) -> set[str]:
        alive = {self._frontend_id}
        for entry in await self._roles.entries():
            if not entry.key.startswith(_LOCK_PREFIX):
                try:
                    card = decode(RoleCard, entry.value)
                except ProtocolError:
                    continue
                if card.role == ROLE:
                    alive.add(card.id)
        return alive

    async def _sweep_later(self, dead_id: str) -> None:
        """All survivors wait, and whoever is first then does it: the one who waits may die too."""
        log.info("frontend_died", frontend=dead_id, sweep_in_s=self._wait_s)
        await asyncio.sleep(self._wait_s)
        try:
            if await self._roles.get(dead_id) is not None:
                return
            await self._roles.put_if(_LOCK_PREFIX + dead_id, self._frontend_id.encode(), 0)
            num_ended = await self._sweep(dead_id)
        except CasConflict:
            num_ended = 0  # another survivor does it
        except BrokerError as exc:
            log.warning("orphans_not_swept", frontend=dead_id, error=str(exc))
            self._missed[dead_id] = 0  # look again
            return
        finally:
            self._sweeping.discard(dead_id)
        self._missed.pop(dead_id, None)
        log.info("orphans_swept", frontend=dead_id, ended=num_ended)

    async def _sweep(self, dead_id: str) -> int:
        readers = await self._attachments.all()
        num_ended = 0
        for request in await self._requests():
            rid, reply = request.rid, request.reply
            if not reply.frontend_id or not concerns(dead_id, reply, readers.get(rid)):
                continue
            if not await self._has_lost_all(rid, reply, dead_id):
                continue
            if await self._terminator.end(rid, request.pool, reply, FinishReason.CANCEL):
                num_ended += 1
        return num_ended

    async def _has_lost_all(self, rid: str, reply: ReplyParams, dead_id: str) -> bool:
        """By leader reads: clients may resume just now."""
        while True:
            try:
                return await self._attachments.leave(rid, reply, dead_id)
            except CasConflict:
                continue

    async def _requests(self) -> list[GenerateRequest]:
        subjects = self._cluster.subjects
        requests = []
        async for message in self._cluster.js.proven_scan(
            subjects.requests_stream, subjects.request("*", "*")
        ):
            try:
                requests.append(decode(GenerateRequest, message.data))
            except ProtocolError as exc:
                log.error("bad_request_in_queue", seq=message.seq, error=str(exc))
        return requests
