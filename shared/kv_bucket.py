"""A KV bucket: the last value of each key, with expiry by the age of the last write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from shared.codec import decode
from shared.errors import ProtocolError
from shared.jetstream import JetStream
from shared.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A value and the revision under which it was written."""

    key: str
    value: bytes
    revision: int


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
        return None if message is None else KvEntry(key, message.data, message.seq)

    async def delete(self, key: str) -> None:
        await self._js.api(f"STREAM.PURGE.{self._stream}", {"filter": self._prefix + key})

    async def entries(self, under: str = "") -> list[KvEntry]:
        """All live entries, or those whose keys begin with these tokens; possibly a moment old."""
        return [
            KvEntry(message.subject.removeprefix(self._prefix), message.data, message.seq)
            async for message in self._js.direct_scan(self._stream, f"{self._prefix}{under}>")
        ]


def readable(message_type: type[T], entries: Iterable[KvEntry]) -> list[T]:
    """The values of entries; one that cannot be read is told, and hides no other."""
    found = []
    for entry in entries:
        try:
            found.append(decode(message_type, entry.value))
        except ProtocolError as exc:
            log.debug("entry_unreadable", type=message_type.__name__, error=str(exc))
    return found
