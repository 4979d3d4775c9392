"""The queue of requests: each stands there under its own subject, from its acceptance to its end.

So a request is found by its id at the price of one read, whatever else is queued, and stored once,
however often it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from shared.broker.jetstream import ERR_TOO_LARGE, JetStream, StoredMessage
from shared.errors import AlreadyStored, BrokerError, LimitReached, ProtocolError, QueueClosed
from shared.protocol.codec import decode_request
from shared.protocol.log_records import Claim
from shared.protocol.reply import SealedReply
from shared.protocol.request import GenerateRequest
from shared.subjects import Subjects, choice_rid
from shared.telemetry.log import get_logger
from shared.token_log.ownership import OwnershipLog

_READING_S = 1.0  # one look at the clock serves all look-ups of so many seconds

log = get_logger(__name__)


class Queued(NamedTuple):
    """A request that is not over."""

    request: GenerateRequest
    age_s: float  # since it was stored, at least


class RequestQueue:
    """Stores and finds requests. All reads are of the stream's leader, or proven by it."""

    def __init__(self, js: JetStream, subjects: Subjects, ownership: OwnershipLog) -> None:
        self._js = js
        self._subjects = subjects
        self._stream = subjects.requests_stream
        self._ownership = ownership

    async def put(
        self, request: GenerateRequest, lane: str, payload: bytes, *, may_be_stored: bool = False
    ) -> None:
        """Store it in the lane with this token; one that is stored already counts as stored.

        `may_be_stored` tells that somebody may have sent it before: then a full queue is no proof
        that it was refused. Raises LimitReached, QueueClosed, BrokerUnavailable or BrokerError.
        """
        reply = request.reply
        subject = self._subjects.request(request.pool, lane, reply.frontend_id, request.rid)
        try:
            await self._js.publish(subject, payload)
        except AlreadyStored:
            return
        except LimitReached:
            if not may_be_stored or not await self._was_accepted(request.rid):
                raise
        except BrokerError as exc:
            if exc.err_code != ERR_TOO_LARGE:
                raise
            # Only a closed queue has a limit of its own.
            if not may_be_stored or not await self._was_accepted(request.rid):
                raise QueueClosed(
                    f"the queue with prefix {self._subjects.prefix!r} is closed: the service has "
                    "moved to another prefix",
                    exc.err_code,
                ) from exc

    async def _was_accepted(self, rid: str) -> bool:
        """A queue that is full or closed says so, also of what is in it."""
        if await self._message(rid) is not None:
            return True
        return await self._ownership.last(rid) is not None  # it has left the queue since

    async def find_queued(self, rid: str) -> Queued | None:
        """Finds it as `find` does, with how long it has stood there. Raises BrokerError."""
        message = await self._message(rid)
        request = None if message is None else await self._read(message)
        if message is None or request is None:
            return None
        clock = await self._js.clock(self._stream, _READING_S)
        return Queued(request, clock.age_s(message.time))

    async def find(self, rid: str) -> GenerateRequest | None:
        """A request that is not over; None for one that is, or never was.

        Raises BrokerError.
        """
        message = await self._message(rid)
        return None if message is None else await self._read(message)

    async def has(self, rid: str) -> bool:
        """Whether it is there, even if it cannot be read here. Raises BrokerError."""
        return await self._message(rid) is not None

    async def of_group(self, group_id: str) -> list[GenerateRequest]:
        """The choices of a group that are not over; the one alone whose id this is.

        Raises BrokerError.
        """
        first = await self.find(group_id)
        reply = first.reply if first is not None else await self._reply_of_log(group_id)
        if reply is None or reply.group_id != group_id:
            return [] if first is None else [first]
        rids = [choice_rid(group_id, idx) for idx in range(1, reply.num_choices)]
        choices = [first, *[await self.find(rid) for rid in rids]]
        return [choice for choice in choices if choice is not None]

    async def _reply_of_log(self, rid: str) -> SealedReply | None:
        """What the first worker that claimed it has told; its choice may be over before others."""
        for stored in await self._ownership.read(rid):
            if isinstance(stored.record, Claim):
                return stored.record.reply
        return None

    async def of_frontend(self, frontend_id: str) -> list[GenerateRequest]:
        """The requests that its death orphans, unless somebody else reads them.

        Raises BrokerError.
        """
        pattern = self._subjects.requests_of_frontend(frontend_id)
        return [request async for request in self._scan(pattern)]

    async def of_pool(self, pool: str) -> list[GenerateRequest]:
        """All of a model. Raises BrokerError."""
        return [request async for request in self._scan(self._subjects.requests(pool, "*"))]

    async def remove(self, rid: str) -> None:
        """Takes out a request that is over: it counts no more as waiting, and wakes no worker.

        Raises BrokerError.
        """
        if (message := await self._message(rid)) is not None:
            await self._js.delete_message(self._stream, message.seq)

    async def _message(self, rid: str) -> StoredMessage | None:
        return await self._js.get_last(self._stream, self._subjects.request_by_rid(rid))

    async def _scan(self, pattern: str) -> AsyncIterator[GenerateRequest]:
        async for message in self._js.proven_scan(self._stream, pattern):
            request = await self._read(message)
            if request is not None:
                yield request

    async def _read(self, message: StoredMessage) -> GenerateRequest | None:
        """None for somebody else's words in the queue: who pulls them refuses them.

        Raises WrittenByNewer.
        """
        try:
            return await self._ownership.level.decoded(decode_request, message.data)
        except ProtocolError as exc:
            log.error("bad_request_in_queue", seq=message.seq, error=str(exc))
            return None
