"""The token log of a story: in memory, behind the face of `JetStream`."""

from __future__ import annotations

import datetime
import random
from collections.abc import Generator

from shared.broker.jetstream import PubAck, StoredMessage
from shared.broker.stream_info import ClockReading
from shared.errors import BrokerUnavailable, CasConflict

_LOG_TIME = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)


class Later:
    """Awaited where the real thing would wait for an answer."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class NoMetrics:
    """Counts nothing."""

    def __getattr__(self, _: str) -> NoMetrics:
        return self

    def inc(self) -> None: ...


class MemoryLog:
    """The token log, behind the face of `JetStream`: what is sent arrives later, or is lost."""

    def __init__(self, rng: random.Random, own: str) -> None:
        self._rng = rng
        self._own = own
        self.messages: list[tuple[str, bytes]] = []  # sequences count from 1
        self._records: list[int] = []
        self.is_calm = False

    def store(self, subject: str, data: bytes) -> int:
        self.messages.append((subject, data))
        if subject == self._own:
            self._records.append(len(self.messages))
        return len(self.messages)

    async def publish(
        self, subject: str, payload: bytes, *, expected_last: int | None = None
    ) -> PubAck:
        await Later()
        if self._is_lost():
            raise BrokerUnavailable("it did not arrive")
        last = self._records[-1] if self._records else 0
        if expected_last is not None and expected_last != last:
            await Later()
            raise CasConflict("wrong last sequence", 10071)
        seq = self.store(subject, payload)
        await Later()
        if self._is_lost():
            raise BrokerUnavailable("the answer did not arrive")
        return PubAck(seq=seq)

    def _is_lost(self) -> bool:
        return not self.is_calm and self._rng.random() < 0.05

    async def get_last(self, stream: str, subject: str) -> StoredMessage | None:
        await Later()
        found = self._records[-1] if self._records and subject == self._own else 0
        await Later()
        return self._stored(found) if found else None

    async def get_next(self, _: str, subject: str, seq: int) -> StoredMessage | None:
        await Later()
        found = next((record for record in self._records if record >= seq), 0)
        await Later()
        return self._stored(found) if found else None

    async def clock(self, _stream: str, _max_age_s: float = 0.0) -> ClockReading:
        """Of a story, which takes no time."""
        await Later()
        return ClockReading(datetime.datetime.now(datetime.UTC), None)

    def _stored(self, seq: int) -> StoredMessage:
        subject, data = self.messages[seq - 1]
        return StoredMessage(subject, seq, data, _LOG_TIME)
