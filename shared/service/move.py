"""A service that moves to other streams: what says so, and how far it has come.

Two records tell of it, each in the bucket `meta` of one side, and the old queue itself: once it is
closed it takes no request any more, whoever has not heard of the move. So there is one moment at
which new requests begin to go to the new side, and it is the old stream's leader who says when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.broker.stream_info import servers_behind
from shared.protocol.codec import encode
from shared.protocol.role_cards import MoveRecord
from shared.service.meta_record import read_record
from shared.subjects import MOVED_FROM_KEY, MOVED_TO_KEY, Subjects

_CLOSED_BYTES = 1  # the largest message that a closed queue takes: every request is larger
_HEARD_WITHIN_S = 2.5  # servers tell each other every second that they live


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a service to another prefix; it is over when the old streams are gone."""

    old: str
    new: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class StoredMove:
    """A record, and the revision under which it was written; 0: nobody has written one."""

    record: MoveRecord | None
    revision: int


class MoveRecords:
    """The records of one prefix. A prefix without streams has none."""

    def __init__(self, js: JetStream, prefix: str) -> None:
        self._js = js
        self._meta = KvBucket(js, Subjects(prefix).meta_bucket)
        self.prefix = prefix

    async def moved_to(self) -> StoredMove:
        """Raises BrokerError, or IncarnationMismatch for what is no record."""
        return await self._read(MOVED_TO_KEY)

    async def moved_from(self) -> StoredMove:
        """Raises as `moved_to` does."""
        return await self._read(MOVED_FROM_KEY)

    async def put_moved_to(self, record: MoveRecord, revision: int) -> None:
        """Raises CasConflict or BrokerError."""
        await self._meta.put_if(MOVED_TO_KEY, encode(record), revision)

    async def put_moved_from(self, record: MoveRecord) -> None:
        """The first. Raises CasConflict or BrokerError."""
        await self._meta.put_if(MOVED_FROM_KEY, encode(record), 0)

    async def forget_moved_from(self) -> None:
        """Raises BrokerError."""
        await self._meta.delete(MOVED_FROM_KEY)

    async def find(self) -> Move | None:
        """The move that this prefix takes part in, on either side. Raises as `moved_to` does."""
        if (to := (await self.moved_to()).record) is not None:
            return Move(self.prefix, to.prefix, to.is_over)
        if (since := (await self.moved_from()).record) is None:
            return None
        told = (await MoveRecords(self._js, since.prefix).moved_to()).record
        if told is None or told.prefix != self.prefix:
            return None  # it is being prepared
        return Move(since.prefix, self.prefix, told.is_over)

    async def _read(self, key: str) -> StoredMove:
        return StoredMove(*await read_record(self._meta, key, MoveRecord, f"the record {key!r}"))


async def oldest_prefix(js: JetStream, prefix: str) -> str:
    """Where a role that serves both sides begins. Raises as `MoveRecords.moved_to` does."""
    move = await MoveRecords(js, prefix).find()
    if move is None:
        return prefix
    return move.new if move.is_over else move.old


async def close_queue(js: JetStream, subjects: Subjects) -> None:
    """From its answer on the queue takes no request; what is in it stays. Raises BrokerError."""
    stream = subjects.requests_stream
    config: dict[str, Any] = (await js.api(f"STREAM.INFO.{stream}"))["config"]
    if config.get("max_msg_size") != _CLOSED_BYTES:
        await js.api(f"STREAM.UPDATE.{stream}", {**config, "max_msg_size": _CLOSED_BYTES})


async def is_queue_closed(js: JetStream, subjects: Subjects) -> bool:
    """Whether it is closed by what its leader has, who may be one that has not heard of it yet.

    Raises BrokerError.
    """
    return (await _queue_state(js, subjects)).is_closed


async def settle_closed_queue(js: JetStream, subjects: Subjects) -> bool:
    """Whether it is closed, and all that was let in is stored and can be found. Raises BrokerError.

    One leader has to say so before and behind the settling: another one than that which closed the
    queue takes requests until it has heard of it.
    """
    before = await _queue_state(js, subjects)
    await js.settle(subjects.requests_stream)
    behind = await _queue_state(js, subjects)
    return before.is_closed and behind.is_closed and before.leader == behind.leader


async def servers_behind_queue(js: JetStream, subjects: Subjects) -> list[str]:
    """Names of the servers that have a copy of the queue and do not keep up: they would not hear
    that it is closed. Raises BrokerError.
    """
    return (await _queue_state(js, subjects)).behind


@dataclass(frozen=True, slots=True)
class _QueueState:
    """What the leader of the queue tells."""

    is_closed: bool
    leader: str  # its server; "" where there is but one
    behind: list[str]  # servers with a copy that do not keep up

    @classmethod
    def read(cls, info: dict[str, Any]) -> Self:
        return cls(
            is_closed=info["config"].get("max_msg_size") == _CLOSED_BYTES,
            leader=(info.get("cluster") or {}).get("leader", ""),
            behind=servers_behind(info, _HEARD_WITHIN_S),
        )


async def _queue_state(js: JetStream, subjects: Subjects) -> _QueueState:
    """Raises BrokerError."""
    return _QueueState.read(await js.api(f"STREAM.INFO.{subjects.requests_stream}"))
