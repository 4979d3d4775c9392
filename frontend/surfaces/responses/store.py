"""Responses in JetStream: any frontend reads what another one has accepted.

A response is one subject. Its first message is the record, stored before the request is queued;
the second is the result, stored by the detokenizer and only behind that very record.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from dataclasses import replace
from typing import NamedTuple

from frontend.jobs.stored_response import KeptResponse, StoredResponse
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.streams.detok_client import DetokClient
from frontend.surfaces.responses.record_writer import RecordWriter
from shared.broker.jetstream import StoredMessage
from shared.broker.piece_chain import PieceChain, piece_of
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, NotFound, ProtocolError, ServiceUnavailable
from shared.protocol.codec import decode, encode
from shared.protocol.request import GenerateRequest
from shared.protocol.text import Done, ReplayStatus
from shared.protocol.token_ids import pack_token_ids
from shared.subjects import is_rid, rid_of
from shared.telemetry.log import get_logger

ID_PREFIX = "resp_"
_ATTEMPTS = 3
_MAX_BATCH = 256  # messages that are read at a time


log = get_logger(__name__)


class KeptRequest(NamedTuple):
    """A request of another API than that of responses, kept as these are."""

    request: GenerateRequest
    done: Done | None  # None while it waits or runs


class EndedRequests(NamedTuple):
    """A part of the store."""

    next_seq: int  # where the next one begins
    found: list[tuple[StoredMessage, Done]]  # the last message of each result
    has_more: bool


class ResponseStore:
    """All reads are leader reads. A response of another API key does not exist."""

    def __init__(
        self,
        cluster: Cluster,
        detok: DetokClient,
        max_record_bytes: int,
        older: ResponseStore | None = None,
    ) -> None:
        """`older`: the store that the service has moved away from, which is still read.

        Raises ConfigError where a record of so many bytes would be too large for a message."""
        self._writer = RecordWriter(cluster, max_record_bytes)
        self._cluster = cluster
        self._detok = detok
        self._older = older

    async def put(self, record: StoredResponse) -> int:
        """Returns the sequence that the result has to follow; doing it twice is harmless.

        Raises RequestTooLarge or ServiceUnavailable.
        """
        return await self._put(record.rid, encode(record), param="input")

    async def put_request(self, request: GenerateRequest) -> int:
        """The same of a request of another API, whole: its result follows as a response's does."""
        return await self._put(request.rid, encode(request), param="store")

    async def _put(self, rid: str, payload: bytes, *, param: str) -> int:
        subject = self._cluster.subjects.response(rid)
        for _ in range(_ATTEMPTS):
            try:
                return await self._writer.put(subject, payload, expected_last=0, param=param)
            except CasConflict:  # ours, and the answer was lost; or of the same idempotency key
                if (message := await self._message(rid, 1)) is not None:
                    return message.seq
        raise ServiceUnavailable("The store of responses did not answer.")

    async def get_request(self, rid: str) -> KeptRequest | None:
        """One that `put_request` has stored, whoever it belongs to; None: there is none.

        Raises ServiceUnavailable.
        """
        found = await self.own_request(rid)
        if found is None and self._older is not None:
            return await self._older.get_request(rid)
        return found

    async def own_request(self, rid: str) -> KeptRequest | None:
        """The same without the older store. Raises ServiceUnavailable."""
        first = await self._message(rid, 1)
        if first is None:
            return None
        result = await self._result(rid, first.seq)
        try:
            request = decode(GenerateRequest, first.data)
            return KeptRequest(request, None if result is None else decode(Done, result))
        except ProtocolError:  # a response
            return None

    @property
    def all(self) -> list[ResponseStore]:
        """This one and that which the service has moved away from, oldest first."""
        return [self] if self._older is None else [*self._older.all, self]

    @property
    def prefix(self) -> str:
        """Its name among them."""
        return self._cluster.subjects.prefix

    async def ended(
        self, seq: int, since: datetime.datetime | None, max_bytes: int
    ) -> EndedRequests:
        """The requests, and responses, whose results lie at `seq` or later in the store, as far
        as so many bytes of it tell; with `since`, from that time on. Not all that has been stored
        in this moment need be among them.

        Raises ServiceUnavailable.
        """
        subjects, js = self._cluster.subjects, self._cluster.js
        found: list[tuple[StoredMessage, Done]] = []
        try:
            if since is not None:
                last = await js.get_last(subjects.responses_stream, subjects.response("*"))
                if last is not None and last.time < since:
                    return EndedRequests(last.seq + 1, found, has_more=False)
            messages = await js.direct_batch(
                subjects.responses_stream,
                subjects.response("*"),
                seq,
                _MAX_BATCH,
                since=since,
                max_bytes=max_bytes,
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The store of responses cannot be read now.") from exc
        for message in messages:
            await asyncio.sleep(0)  # others have their turn: each may take milliseconds
            data = await self._ending_with(message)
            with contextlib.suppress(ProtocolError):  # what was asked, or a conversation
                if data is not None:
                    found.append((message, decode(Done, data)))
        next_seq = messages[-1].seq + 1 if messages else seq
        return EndedRequests(next_seq, found, has_more=bool(messages))

    async def get(self, response_id: str, owner: str) -> KeptResponse:
        """Raises NotFound or ServiceUnavailable."""
        rid = response_id.removeprefix(ID_PREFIX)
        if not response_id.startswith(ID_PREFIX) or not is_rid(rid):
            raise _unknown(response_id)
        first = await self._message(rid, 1)
        if first is None:
            if self._older is not None:
                return await self._older.get(response_id, owner)
            raise _unknown(response_id)
        result = await self._result(rid, first.seq)
        try:
            record = decode(StoredResponse, first.data)
            if record.reply.answer is not None:
                AnswerParsers.of(record.reply.answer)
            done = None if result is None else decode(Done, result)
        except ProtocolError as exc:
            if await self.get_request(rid) is None:
                log.error("response_unreadable", rid=rid, error=str(exc))
            raise _unknown(response_id) from exc
        if record.reply.owner != owner:
            raise _unknown(response_id)
        kept = KeptResponse(record, first.seq, done)
        return kept if done else await self._unfinished(kept)

    async def delete(self, rid: str) -> None:
        """Record and result; a result that is still to come is not stored. Raises BrokerError."""
        subjects = self._cluster.subjects
        subject = subjects.response(rid)
        await self._cluster.js.purge_for_good(subjects.responses_stream, subject)
        if self._older is not None:
            await self._older.delete(rid)

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def forget(self, rid: str) -> None:
        """Forgets a request that was not accepted; a failure leaves rubbish, nothing worse."""
        with contextlib.suppress(BrokerError):
            await self.delete(rid)

    async def _ending_with(self, message: StoredMessage) -> bytes | None:
        """The record whose last message this is. Raises ServiceUnavailable."""
        piece = piece_of(message.data)
        if piece is None:
            return message.data
        if piece.piece_idx < piece.num_pieces - 1:
            return None
        rid = rid_of(message.subject)
        first = await self._message(rid, 1)
        return None if first is None else await self._result(rid, first.seq)

    async def _unfinished(self, kept: KeptResponse) -> KeptResponse:
        """Without a result in the store: it may be in the log for a moment already."""
        rid = kept.record.rid
        try:
            answer = await self._detok.look(rid)
        except (BrokerError, ProtocolError):
            return kept  # no more can be said without a detokenizer
        chunk = answer.chunk
        if chunk is None or chunk.finish is None:
            return replace(kept, is_queued=answer.status is ReplayStatus.QUEUED)
        token_ids = pack_token_ids(chunk.token_ids)
        done = Done(rid, token_ids, chunk.text, chunk.finish, answer.reply, chunk.logprobs)
        return replace(kept, done=done)

    async def _result(self, rid: str, record_seq: int) -> bytes | None:
        subjects = self._cluster.subjects
        results = PieceChain(self._cluster.js, subjects.responses_stream)
        try:
            return await results.read(subjects.response(rid), record_seq + 1)
        except BrokerError as exc:
            raise ServiceUnavailable("The store of responses cannot be read now.") from exc

    async def _message(self, rid: str, seq: int) -> StoredMessage | None:
        subjects = self._cluster.subjects
        try:
            return await self._cluster.js.get_next(
                subjects.responses_stream, subjects.response(rid), seq
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The store of responses cannot be read now.") from exc


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"No response {response_id[:64]!r} is known: it may have expired, been deleted, not been "
        "kept, or belong to another API key.",
        code="response_not_found",
    )
