"""What idempotency keys stand for, in a KV bucket that all frontends share."""

from __future__ import annotations

from dataclasses import dataclass

from shared.codec import decode, encode
from shared.errors import BrokerError, CasConflict, ProtocolError, ServiceUnavailable
from shared.kv_bucket import KvBucket, KvEntry
from shared.protocol.request import RequestGroup

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key's group, and whether this call gave it to the key: then its requests are ours to queue.

    The group id is random: a key that is used again after its entry has expired gets other rids.
    """

    group: RequestGroup
    revision: int
    is_ours: bool


class IdempotencyStore:
    """Entries are made and replaced by compare-and-set: one of many callers is the first."""

    def __init__(self, bucket: KvBucket) -> None:
        self._bucket = bucket

    async def get(self, name: str) -> HeldKey | None:
        """A leader read. Raises ServiceUnavailable."""
        try:
            entry = await self._bucket.get(name)
        except BrokerError as exc:
            raise _unavailable() from exc
        return None if entry is None else _held(entry, None)

    async def write(self, name: str, group: RequestGroup, revision: int) -> HeldKey:
        """Give the key this group, unless it has changed since `revision` (0: it had none).

        Returns what the key stands for now. Raises ServiceUnavailable.
        """
        for _ in range(_ATTEMPTS):
            try:
                stored = await self._bucket.put_if(name, encode(group), revision)
            except CasConflict:
                pass  # also after a write whose answer was lost: its group id is ours
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
    return HeldKey(group, entry.revision, is_ours=group == ours)


def _unavailable() -> ServiceUnavailable:
    return ServiceUnavailable("The idempotency key could not be looked up.")
