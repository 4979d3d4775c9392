"""What idempotency keys stand for, in a KV bucket that all frontends share."""

from __future__ import annotations

from dataclasses import dataclass

from frontend.limits.stream_limits import StreamLimits
from shared.broker.kv_bucket import KvBucket, KvEntry
from shared.errors import (
    BrokerError,
    CasConflict,
    LimitReached,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
)
from shared.protocol.codec import decode, encode
from shared.protocol.request import RequestGroup

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
