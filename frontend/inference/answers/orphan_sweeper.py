"""Ends the requests of frontends that have died, unless their clients resumed elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from frontend.config import ROLE
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.terminator import Terminator
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, ProtocolError
from shared.event_wait import beat_s
from shared.liveness.heartbeat import Writability
from shared.protocol.codec import decode
from shared.protocol.finish import FinishReason
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import RoleCard
from shared.telemetry.log import get_logger

_POLL_S = 1.0
_POLL_ALONE_S = 3.0  # while no other frontend is known
_MISSED_POLLS = 2
_REGISTER_S = 60.0  # far below the time that the bucket keeps an entry
_LOCK_PREFIX = "orphans."
_MAX_AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")

log = get_logger(__name__)


class OrphanSweeper:
    """Watches the heartbeats of the other frontends.

    A request stays in the queue until it has finished, under a subject that names the frontend that
    accepted it; what a frontend joined later, it has marked. So a sweep reads what a dead frontend
    was concerned with, and nothing else. Sweeping twice is harmless: `end` is written once.
    `is_in_line` tells whether a client is just resuming a group here. `writability` is that of the
    bucket of heartbeats: while servers choose a leader those of the living expire, too.
    """

    def __init__(
        self,
        cluster: Cluster,
        terminator: Terminator,
        attachments: Attachments,
        frontend_id: str,
        wait_s: float,
        is_in_line: Callable[[str], bool],
        writability: Writability,
    ) -> None:
        self._queue = cluster.queue
        self._terminator = terminator
        self._frontend_id = frontend_id
        self._wait_s = wait_s
        self._is_in_line = is_in_line
        self._writability = writability
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._attachments = attachments
        self._missed: Counter[str] = Counter()  # polls, by a frontend that was once seen
        self._sweeping: set[str] = set()
        self._register_at = 0.0  # of the event loop's clock
        self._knows_earlier = False

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._register()
                for dead_id in await self._newly_dead():
                    self._sweeping.add(dead_id)
                    tasks.create_task(self._sweep_later(dead_id))
                is_alone = self._missed.keys() <= {self._frontend_id}
                await asyncio.sleep(beat_s(_POLL_ALONE_S if is_alone else _POLL_S))

    async def _register(self) -> None:
        """Frontends that died when nobody looked have registered before, as we do."""
        now = asyncio.get_running_loop().time()
        try:
            if now >= self._register_at:
                await self._attachments.register()
                self._register_at = now + _REGISTER_S
            if not self._knows_earlier:
                for frontend_id in await self._attachments.frontends():
                    self._missed.setdefault(frontend_id, 0)
                self._knows_earlier = True
        except BrokerError as exc:
            log.warning("frontends_not_read", error=str(exc))

    async def _newly_dead(self) -> list[str]:
        try:
            alive = await self._alive()
        except BrokerError:
            return []  # who cannot see, cannot judge
        for frontend_id in alive:
            self._missed[frontend_id] = 0
        self._missed.pop("", None)
        if not self._writability.is_steady:
            self._missed = Counter(dict.fromkeys(self._missed, 0))
            return []
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
        num_ended = num_in_line = 0
        try:
            if await self._roles.get(dead_id) is not None:
                return
            if not self._writability.is_steady:
                self._missed[dead_id] = 0  # look again
                return
            await self._roles.put_if(_LOCK_PREFIX + dead_id, self._frontend_id.encode(), 0)
            num_ended, num_in_line = await self._sweep(dead_id)
            if not num_in_line:
                await self._attachments.forget(dead_id)
        except CasConflict:
            pass  # another survivor does it
        except BrokerError as exc:
            log.warning("orphans_not_swept", frontend=dead_id, error=str(exc))
            self._missed[dead_id] = 0  # look again
            return
        finally:
            self._sweeping.discard(dead_id)
        if num_in_line:
            self._missed[dead_id] = 0  # whoever stands in line may leave it without having joined
        else:
            self._missed.pop(dead_id, None)
        log.info("orphans_swept", frontend=dead_id, ended=num_ended, in_line=num_in_line)

    async def _sweep(self, dead_id: str) -> tuple[int, int]:
        """How many were ended, and how many left to clients that are just coming back."""
        orphans = [
            request
            for request in await self._concerned(dead_id)
            if request.reply.frontend_id  # a detached one has no reader to lose
        ]
        left = [request for request in orphans if not self._is_in_line(request.reply.group_id)]
        ended = await _each(left, lambda request: self._end_if_lost(request, dead_id))
        return sum(ended), len(orphans) - len(left)

    async def _concerned(self, dead_id: str) -> list[GenerateRequest]:
        accepted = await self._queue.of_frontend(dead_id)
        joined = await _each(await self._attachments.joined_by(dead_id), self._queue.find)
        return [*accepted, *(request for request in joined if request is not None)]

    async def _end_if_lost(self, request: GenerateRequest, dead_id: str) -> bool:
        """Decides by leader reads: clients may resume just now."""
        rid, reply = request.rid, request.reply
        while True:
            try:
                if self._is_in_line(reply.group_id):
                    return False
                if not await self._attachments.leave(rid, reply, dead_id):
                    return False
                return await self._terminator.end(rid, request.pool, reply, FinishReason.CANCEL)
            except CasConflict:
                continue


async def _each(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in order; a few are under way at a time."""
    free = asyncio.Semaphore(_MAX_AT_ONCE)

    async def bounded(item: T) -> R:
        async with free:
            return await work(item)

    return await asyncio.gather(*(bounded(item) for item in items))
