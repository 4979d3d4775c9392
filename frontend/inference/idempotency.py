"""Requests with an idempotency key: the first one starts a generation, all others join it."""

from __future__ import annotations

import asyncio
import enum
import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from frontend.limits.stream_limits import StreamLimits
from frontend.metrics import AcceptanceMetrics
from shared.broker.kv_bucket import KvBucket, KvEntry
from shared.errors import (
    BrokerError,
    CasConflict,
    IdempotencyConflict,
    LimitReached,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
)
from shared.protocol.codec import decode, encode
from shared.protocol.request import RequestGroup
from shared.subjects import new_rid

# How long a frontend may take from giving a key its group to queueing it. Later, a group that is
# nowhere is one that never was queued, or that nobody remembers.
_QUEUEING_S = 60
_MAX_ROUNDS = 8

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
_ATTEMPTS = 3
_RETRY_AFTER_S = 30


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key's group, and whether this call gave it to the key: then its requests are ours to queue.

    The group id is random: a key that is used again after its entry has expired gets other rids.
    """

    group: RequestGroup
    revision: int
    is_ours: bool
    entry: KvEntry | None = None  # as it was read; None: this call wrote it


class IdempotencyStore:
    """Entries are made and replaced by compare-and-set: one of many callers is the first."""

    def __init__(self, bucket: KvBucket, streams: StreamLimits) -> None:
        self._bucket = bucket
        self._streams = streams

    async def get(self, name: str) -> HeldKey | None:
        """A leader read. Raises ServiceUnavailable."""
        try:
            entry = await self._bucket.get(name)
        except BrokerError as exc:
            raise _unavailable() from exc
        return None if entry is None else _held(entry, None)

    async def age_s(self, held: HeldKey) -> float:
        """Seconds since the key was given its group, at least. Raises ServiceUnavailable."""
        if held.entry is None:
            return 0.0
        try:
            return await self._bucket.age_s(held.entry)
        except BrokerError as exc:
            raise _unavailable() from exc

    async def write(self, name: str, group: RequestGroup, revision: int) -> HeldKey:
        """Give the key this group, unless it has changed since `revision` (0: it had none).

        Returns what the key stands for now. Raises QueueFull or ServiceUnavailable.
        """
        self._streams.check_key()
        for _ in range(_ATTEMPTS):
            try:
                stored = await self._bucket.put_if(name, encode(group), revision)
            except CasConflict:
                pass  # also after a write whose answer was lost: its group id is ours
            except LimitReached as exc:
                raise _full() from exc
            except BrokerError:
                continue
            else:
                return HeldKey(group, stored, is_ours=True)
            try:
                entry = await self._bucket.get(name)
            except BrokerError:
                continue
            if entry is not None:
                return _held(entry, group)
            revision = 0  # it expired meanwhile
        raise _unavailable()


def _held(entry: KvEntry, ours: RequestGroup | None) -> HeldKey:
    try:
        group = decode(RequestGroup, entry.value)
    except ProtocolError as exc:
        raise _unavailable() from exc
    return HeldKey(group, entry.revision, is_ours=group == ours, entry=entry)


def _full() -> QueueFull:
    return QueueFull(
        "The store of idempotency keys is full (--keys-max-bytes); try again later.",
        _RETRY_AFTER_S,
    )


def _unavailable() -> ServiceUnavailable:
    return ServiceUnavailable("The idempotency key could not be looked up.")


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
