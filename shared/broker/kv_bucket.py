"""A KV bucket: the last value of each key, with expiry by the age of the last write."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from shared.broker.jetstream import JetStream, StoredMessage
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.telemetry.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A value and the revision under which it was written."""

    key: str
    value: bytes
    revision: int
    written_at: datetime.datetime  # by the bucket's own clock, which only `age_s` may read


class KvBucket:
    """Operations on one bucket. Deleting purges, so that no tombstone is left to fall over."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js = js
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever was there; returns the revision."""
        return (await self._js.publish(self._prefix + key, value)).seq

    async def put_if(self, key: str, value: bytes, revision: int) -> int:
        """Write iff the key's revision is this one (0: absent). Raises CasConflict."""
        ack = await self._js.publish(self._prefix + key, value, expected_last=revision)
        return ack.seq

    async def get(self, key: str) -> KvEntry | None:
        """Leader read."""
        message = await self._js.get_last(self._stream, self._prefix + key)
        return None if message is None else _entry(key, message)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Whatever it is, or only if nothing was written behind this revision."""
        below = None if revision is None else revision + 1
        await self._js.purge(self._stream, self._prefix + key, below=below)

    async def erase(self, key: str) -> None:
        """Deletes it as `delete` does, and its bytes are overwritten."""
        await self._js.erase(self._stream, self._prefix + key)

    async def entries(self, under: str = "") -> list[KvEntry]:
        """All live entries, or those whose keys begin with these tokens; possibly a moment old."""
        return [
            _entry(message.subject.removeprefix(self._prefix), message)
            async for message in self._js.direct_scan(self._stream, f"{self._prefix}{under}>")
        ]

    async def age_s(self, entry: KvEntry) -> float:
        """Seconds since it was written, at least. Raises BrokerError."""
        return (await self._js.clock(self._stream)).age_s(entry.written_at)


def _entry(key: str, message: StoredMessage) -> KvEntry:
    return KvEntry(key, message.data, message.seq, message.time)


def readable(message_type: type[T], entries: Iterable[KvEntry]) -> list[T]:
    """The values of entries; one that cannot be read is told, and hides no other."""
    found = []
    for entry in entries:
        try:
            found.append(decode(message_type, entry.value))
        except ProtocolError as exc:
            log.debug("entry_unreadable", type=message_type.__name__, error=str(exc))
    return found
