"""Conversations in JetStream, beside the responses that are made in them.

A conversation is one subject of the store of responses, and its last message is what it is. It
names the response that was begun in it last: what that has said is read from its own result, so
that nothing has to be written when it ends, whoever has died.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from frontend.jobs.stored_response import (
    Conversation,
    ConversationRecord,
    KeptResponse,
    RecordOwner,
)
from frontend.surfaces.responses.conversation import conversation_of
from frontend.surfaces.responses.record_writer import RecordWriter
from frontend.surfaces.responses.store import ID_PREFIX as RESPONSE_PREFIX
from frontend.surfaces.responses.store import ResponseStore
from shared.admin.request_end import last_word
from shared.broker.jetstream import StoredMessage
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    CasConflict,
    ConversationLocked,
    NotFound,
    ProtocolError,
    ServiceUnavailable,
)
from shared.protocol.codec import decode, encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.sealed_replies import seal
from shared.subjects import is_rid, new_rid
from shared.telemetry.log import get_logger

ID_PREFIX = "conv_"
_QUEUEING_S = 60.0  # from naming a response to queueing it, at most
_SETTLE_S = 60.0  # behind a response's deadline: no result will come
_READING_S = 1.0  # one look at the clock serves all of so many seconds

log = get_logger(__name__)


class ConversationStore:
    """All reads are leader reads. A conversation of another API key does not exist."""

    def __init__(
        self,
        cluster: Cluster,
        responses: ResponseStore,
        max_record_bytes: int,
        frontend_id: str,
        older: ConversationStore | None = None,
    ) -> None:
        """`older`: the store that the service has moved away from: what changes comes here."""
        self._cluster = cluster
        self._frontend_id = frontend_id
        self._responses = responses
        self._writer = RecordWriter(cluster, max_record_bytes)
        self._older = older

    async def create(
        self, owner: str, metadata: dict[str, str], items: Sequence[dict[str, Any]]
    ) -> Conversation:
        """Raises RequestTooLarge or ServiceUnavailable."""
        name = new_rid()
        record = ConversationRecord(
            RecordOwner(owner, name), int(time.time()), metadata, list(items)
        )
        return await self._written(record, 0)

    async def get(self, conversation_id: str, owner: str) -> Conversation:
        """Raises NotFound or ServiceUnavailable."""
        name = conversation_id.removeprefix(ID_PREFIX)
        if not conversation_id.startswith(ID_PREFIX) or not is_rid(name):
            raise _unknown(conversation_id)
        message = await self._last(name)
        if message is None:
            if self._older is not None:
                return replace(await self._older.get(conversation_id, owner), is_older=True)
            raise _unknown(conversation_id)
        try:
            record = decode(ConversationRecord, message.data)
        except ProtocolError as exc:  # also of a response, which has such an id too
            log.debug("conversation_unreadable", rid=name, error=str(exc))
            raise _unknown(conversation_id) from exc
        if record.reply.owner != owner:
            raise _unknown(conversation_id)
        return await self._as_of_now(record, message)

    async def change(self, found: Conversation, **changes: Any) -> Conversation:
        """Raises ConversationLocked when somebody else was faster, RequestTooLarge or
        ServiceUnavailable.
        """
        record = msgspec.structs.replace(found.record, **changes)
        changed = await self._written(record, 0 if found.is_older else found.seq)
        subjects = self._cluster.subjects
        subject = subjects.response(record.reply.group_id)
        with contextlib.suppress(BrokerError):  # what stays goes with its age
            await self._cluster.js.purge(subjects.responses_stream, subject, below=changed.seq)
            if found.is_older and self._older is not None:
                await self._older.delete(found)
        return changed

    async def begin(self, found: Conversation, rid: str) -> None:
        """A response is about to be queued that goes on with what was found. Doing it twice is
        harmless. Raises ConversationLocked, RequestTooLarge or ServiceUnavailable.
        """
        try:
            await self.change(found, running=rid)
        except ConversationLocked:
            message = await self._last(found.record.reply.group_id)
            if message is None or decode(ConversationRecord, message.data).running != rid:
                raise

    async def settle(self, conversation_id: str, owner: str) -> None:
        """Write down what its last response has said, which is about to go.

        Raises ConversationLocked, RequestTooLarge or ServiceUnavailable.
        """
        try:
            found = await self.get(conversation_id, owner)
        except NotFound:
            return
        if not found.is_running:
            await self.change(found)

    async def delete(self, found: Conversation) -> None:
        """What is being said in it comes to nothing. Raises BrokerError."""
        subjects = self._cluster.subjects
        subject = subjects.response(found.record.reply.group_id)
        await self._cluster.js.purge_for_good(subjects.responses_stream, subject)
        if self._older is not None:
            await self._older.delete(found)

    def forget_older(self) -> None:
        """Its streams are gone."""
        self._older = None

    async def _written(self, record: ConversationRecord, seq: int) -> Conversation:
        """Behind the message with this sequence. Raises ConversationLocked."""
        name, payload = record.reply.group_id, encode(record)
        subject = self._cluster.subjects.response(name)
        conversation_id = ID_PREFIX + name
        try:
            written = await self._writer.put(
                subject, payload, expected_last=seq, param="conversation"
            )
        except CasConflict as exc:
            last = await self._last(name)
            if last is None or last.data != payload:
                raise ConversationLocked(conversation_id) from exc
            written = last.seq  # ours, and the answer was lost
        return Conversation(conversation_id, record, written, is_running=bool(record.running))

    async def _as_of_now(self, record: ConversationRecord, message: StoredMessage) -> Conversation:
        """The conversation with what the response begun last has said, where that has ended."""
        conversation_id, seq = ID_PREFIX + record.reply.group_id, message.seq
        if not record.running:
            return Conversation(conversation_id, record, seq, is_running=False)
        try:
            kept = await self._responses.get(RESPONSE_PREFIX + record.running, record.reply.owner)
        except NotFound:  # it was refused by the queue, or has been deleted
            kept = None
        if kept is not None and kept.done is None and await self._may_say_more(kept, message.time):
            return Conversation(conversation_id, record, seq, is_running=True)
        items = record.items
        if kept is not None and _has_answer(kept):
            items = conversation_of(kept)
        settled = msgspec.structs.replace(record, items=items, running="")
        return Conversation(conversation_id, settled, seq, is_running=False)

    async def _may_say_more(self, kept: KeptResponse, begun_at: datetime.datetime) -> bool:
        """Whether a response without a result may get one that has an answer.

        Its frontend may have died before it queued it: then it is ended, so that it never runs.
        """
        reply, stream = kept.record.reply, self._cluster.subjects.responses_stream
        try:
            age_s = (await self._cluster.js.clock(stream, _READING_S)).age_s(begun_at)
            if age_s < _QUEUEING_S:
                return True
            told = msgspec.structs.replace(reply, kept_at=kept.seq)
            end = End(prev=0, reason=FinishReason.CANCEL, by=self._frontend_id, reply=seal(told))
            last = await last_word(self._cluster, reply.group_id, end)
        except BrokerError as exc:
            raise ServiceUnavailable("The store of conversations cannot be read now.") from exc
        if isinstance(last, End) and not last.prev:
            return False  # no worker ever had it
        return age_s < reply.deadline_s + _SETTLE_S

    async def _last(self, name: str) -> StoredMessage | None:
        subjects = self._cluster.subjects
        try:
            return await self._cluster.js.get_last(
                subjects.responses_stream, subjects.response(name)
            )
        except BrokerError as exc:
            raise ServiceUnavailable("The store of conversations cannot be read now.") from exc


def _has_answer(kept: KeptResponse) -> bool:
    reasons = (FinishReason.STOP, FinishReason.LENGTH)
    return kept.done is not None and kept.done.finish.reason in reasons


def _unknown(conversation_id: str) -> NotFound:
    return NotFound(
        f"No conversation {conversation_id[:64]!r} is known: it may have expired, been deleted, or "
        "belong to another API key.",
        code="conversation_not_found",
    )
