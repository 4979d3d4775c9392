"""The feature level of a service: what its writers may use that not every build understands.

It is stored in the bucket `meta`, and only rises: when no role alive knows less, or by an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.errors import BrokerError, ConfigError, NewerLevel, OutdatedBuild, WrittenByNewer
from shared.event_wait import beat_s, wait_event
from shared.protocol.codec import encode
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord
from shared.service.meta_record import read_record
from shared.subjects import LEVEL_KEY, Subjects
from shared.telemetry.log import get_logger

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

_LOOK_S = 10.0  # who meets a message beyond it looks at once
_RETRY_S = 0.3

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """The record, and the revision under which it was written; 0: nobody has written one."""

    record: LevelRecord
    revision: int


class FeatureLevel:
    """What this process knows, and what is in force as far as it has read: never more than is.

    A writer stamps what it stores with the level that is in force, and uses nothing above it. So
    whoever knows less sees that it does, and leaves the message alone.
    """

    def __init__(self, js: JetStream, subjects: Subjects, known: int = FEATURE_LEVEL) -> None:
        self._meta = KvBucket(js, subjects.meta_bucket)
        self.known = known
        self.outdated = asyncio.Event()  # what is in force is more than this process knows
        self._in_force = 1

    @property
    def in_force(self) -> int:
        """What may be used in what is written from now on."""
        return min(self._in_force, self.known)

    def stamp(self, message: T) -> T:
        """The same message, with the level in force in its field `level`."""
        return msgspec.structs.replace(message, level=self.in_force)

    def check(self) -> None:
        """Raises OutdatedBuild."""
        if self.outdated.is_set():
            raise OutdatedBuild(self._in_force, self.known)

    async def read(self) -> StoredLevel:
        """What is in force now, by the leader; from then on this process goes by it.

        Raises BrokerError, or IncarnationMismatch for what is no record.
        """
        stored = await self._read()
        if stored.record.level > self._in_force:
            self._in_force = stored.record.level
            if self._in_force > self.known:
                self.outdated.set()
        return stored

    async def _read(self) -> StoredLevel:
        what = "the feature level"
        record, revision = await read_record(self._meta, LEVEL_KEY, LevelRecord, what)
        return StoredLevel(record or LevelRecord(1), revision)

    async def decoded(self, read: Callable[[bytes], R], data: bytes) -> R:
        """What is stored. Raises WrittenByNewer; ProtocolError: nobody can have meant it so."""
        try:
            return read(data)
        except NewerLevel as exc:
            if await self._is_in_force(exc.level):
                raise WrittenByNewer(str(exc)) from exc
            raise

    async def _is_in_force(self, level: int) -> bool:
        """Whether anybody may have written under it. Raises as `read` does."""
        return level <= self._in_force or level <= (await self.read()).record.level

    async def put(self, record: LevelRecord, revision: int) -> None:
        """Store it behind this revision. Raises CasConflict or BrokerError.

        Nobody can tell what was written under a level before: it never goes down.
        """
        assert record.level >= self._in_force
        await self._meta.put_if(LEVEL_KEY, encode(record), revision)

    async def run(self) -> None:
        """Look now and then, until cancelled or outdated."""
        while not await wait_event(self.outdated, beat_s(_LOOK_S)):
            await self._try_read()
        log.error("build_outdated", in_force=self._in_force, known=self.known)

    async def settle_doubt(self) -> None:
        """Until it is known whether this build is outdated: for who met a newer message."""
        while not await self._try_read():
            await wait_event(self.outdated, _RETRY_S)

    async def _try_read(self) -> bool:
        try:
            await self.read()
        except (BrokerError, ConfigError) as exc:
            log.debug("feature_level_not_read", error=str(exc))
            return False
        return True
