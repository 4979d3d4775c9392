"""Requests with an idempotency key: the first one starts a generation, all others join it."""

from __future__ import annotations

import asyncio
import enum
import time
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from frontend.inference.idempotency.idempotency_store import HeldKey, IdempotencyStore
from frontend.metrics import AcceptanceMetrics
from shared.errors import IdempotencyConflict, ServiceUnavailable
from shared.protocol.request import RequestGroup
from shared.subjects import new_rid

# How long a frontend may take from giving a key its group to queueing it. Later, a group that is
# nowhere is one that never was queued, or that nobody remembers.
_QUEUEING_S = 60
_MAX_ROUNDS = 8

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Absent(enum.Enum):
    """Why a group cannot be joined."""

    UNKNOWN = "unknown"  # neither queued nor in the log nor among the results
    OVER = "over"  # cancelled, or out of time: it has no result


class Startable(Protocol[T_co]):
    """A request as it came, which does not yet know whether it is the first of its key."""

    async def validate(self) -> None:
        """Raises RequestError."""

    async def queue(self, group: RequestGroup, *, is_first: bool) -> T_co | Absent:
        """Put it into the queue. Doing it twice is harmless: one of the messages counts."""

    async def join(self, group: RequestGroup) -> T_co | Absent:
        """Read what another request started, from its beginning."""


class KeyedStarts(Generic[T]):
    """Decides who is first. One lock a key spares this frontend's own clients the races."""

    def __init__(
        self, store: IdempotencyStore, metrics: AcceptanceMetrics, frontend_id: str
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._frontend_id = frontend_id
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, request: Startable[T], key: str, name: str, fingerprint: str) -> T:
        """Raises IdempotencyConflict when the key stands for another body, or RequestError."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        for _ in range(_MAX_ROUNDS):
            async with lock:
                held = await self._store.get(name)
                if held is None:
                    held = await self._give(request, name, fingerprint, 0)
                    if held.is_ours:
                        return await self._queue_first(request, held, "new")
            if held.group.fingerprint != fingerprint:
                self._metrics.keyed.labels("conflict").inc()
                raise IdempotencyConflict(key)
            outcome = await request.join(held.group)
            if isinstance(outcome, Absent):
                async with lock:
                    outcome = await self._revive(request, held, name)
                if isinstance(outcome, Absent):
                    continue
            else:
                self._metrics.keyed.labels("joined").inc()
            return outcome
        raise ServiceUnavailable("The request of this idempotency key ended again and again.")

    async def joined(
        self, request: Startable[T], key: str, name: str, fingerprint: str
    ) -> T | None:
        """What the key stands for already; None when that is nowhere, or has no result.

        Raises IdempotencyConflict or RequestError.
        """
        held = await self._store.get(name)
        if held is None:
            return None
        if held.group.fingerprint != fingerprint:
            self._metrics.keyed.labels("conflict").inc()
            raise IdempotencyConflict(key)
        outcome = await request.join(held.group)
        if isinstance(outcome, Absent):
            return None
        self._metrics.keyed.labels("joined").inc()
        return outcome

    async def _revive(self, request: Startable[T], held: HeldKey, name: str) -> T | Absent:
        """The group is nowhere, or has ended without a result. Absent: look again."""
        outcome = await request.join(held.group)  # somebody may have just queued it
        if not isinstance(outcome, Absent):
            self._metrics.keyed.labels("joined").inc()
            return outcome
        await request.validate()
        if outcome is Absent.UNKNOWN and await self._store.age_s(held) < _QUEUEING_S:
            # Its frontend is about to queue it, or has died before it did.
            outcome = await request.queue(held.group, is_first=False)
            if not isinstance(outcome, Absent):
                self._metrics.keyed.labels("joined").inc()
                return outcome
        renewed = await self._give(request, name, held.group.fingerprint, held.revision)
        if not renewed.is_ours:
            return Absent.UNKNOWN
        return await self._queue_first(request, renewed, "renewed")

    async def _give(
        self, request: Startable[T], name: str, fingerprint: str, revision: int
    ) -> HeldKey:
        """A new group for the key, unless somebody else was faster."""
        await request.validate()
        group = RequestGroup(new_rid(), fingerprint, int(time.time()), self._frontend_id)
        return await self._store.write(name, group, revision)

    async def _queue_first(self, request: Startable[T], held: HeldKey, result: str) -> T:
        outcome = await request.queue(held.group, is_first=True)
        assert not isinstance(outcome, Absent), "who is first does not ask others"
        self._metrics.keyed.labels(result).inc()
        return outcome
