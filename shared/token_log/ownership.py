"""The ownership log of a request: a chain of records, each stored by compare-and-set.

A message on its subject that cannot be read is no record: nobody counts it, and the chain goes on
behind it (docs/protocol.md, "Messages"). A record of a newer build is one, whatever it says: who
meets it can say nothing of the request.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import msgspec

from shared.broker.jetstream import JetStream, StoredMessage
from shared.errors import BrokerUnavailable, CasConflict, ProtocolError
from shared.protocol.codec import decode_ownership, encode
from shared.protocol.log_records import Claim, End, OwnershipRecord
from shared.service.feature_level import FeatureLevel
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

_MAX_APPENDS = 8  # while unreadable messages come in between

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """An ownership record with its place in the stream and the server's time of storing it."""

    seq: int
    time: datetime.datetime
    record: OwnershipRecord


class OwnershipLog:
    """Reads and extends ownership logs. All reads are leader reads: staleness loses tokens.

    All methods raise BrokerUnavailable, and WrittenByNewer, which is one.
    """

    def __init__(
        self, js: JetStream, subjects: Subjects, level: FeatureLevel | None = None
    ) -> None:
        self._js = js
        self._subjects = subjects
        self.level = level or FeatureLevel(js, subjects)

    async def read(self, rid: str) -> list[StoredRecord]:
        """The whole chain, oldest first; empty when nobody has claimed or ended the request."""
        records: list[StoredRecord] = []
        seq = 1
        while (found := await self.first_from(rid, seq)) is not None:
            records.append(found)
            seq = found.seq + 1
        return records

    async def last(self, rid: str) -> StoredRecord | None:
        message = await self._last_message(rid)
        if message is None:
            return None
        found = await self._stored(message)
        if found is None:
            records = await self.read(rid)
            return records[-1] if records else None
        return found

    async def first_from(self, rid: str, seq: int) -> StoredRecord | None:
        """The first record stored at `seq` or later."""
        subject = self._subjects.ownership(rid)
        while True:
            message = await self._js.get_next(self._subjects.tokens_stream, subject, seq)
            if message is None:
                return None
            found = await self._stored(message)
            if found is not None:
                return found
            seq = message.seq + 1

    async def append(self, rid: str, record: OwnershipRecord) -> int:
        """Store a record after the one at `record.prev`; returns its sequence.

        Raises CasConflict or BrokerUnavailable: after either, read back, since a retry of a record
        that was stored conflicts with itself.
        """
        subject, payload = self._subjects.ownership(rid), encode(self.level.stamp(record))
        expected = record.prev
        for _ in range(_MAX_APPENDS):
            try:
                return (await self._js.publish(subject, payload, expected_last=expected)).seq
            except CasConflict:
                end = await self._unreadable_end(rid, record.prev)
                if end is None:
                    raise
                expected = end
        raise CasConflict(f"unreadable messages keep coming on {subject}")

    async def _unreadable_end(self, rid: str, prev: int) -> int | None:
        """Sequence of the last message, when nothing but unreadable ones follow that at `prev`."""
        message = await self._last_message(rid)
        if message is None or await self._stored(message) is not None:
            return None
        records = await self.read(rid)
        last_seq = records[-1].seq if records else 0
        return message.seq if last_seq == prev else None

    async def _last_message(self, rid: str) -> StoredMessage | None:
        return await self._js.get_last(self._subjects.tokens_stream, self._subjects.ownership(rid))

    async def end(self, rid: str, end: End, *, attempts: int = 8) -> int | None:
        """Append an `end` after whatever is last: sequence of that, 0 if nobody ever claimed it.

        None when the log already has an end, and not from an attempt of this call whose answer was
        lost. `end.prev` is replaced. Raises BrokerUnavailable when the broker stays away.
        """
        may_be_stored = False
        for attempt in range(attempts):
            last = await self.last(rid)
            if last is not None and isinstance(last.record, End):
                return last.record.prev if may_be_stored and last.record.by == end.by else None
            prev = 0 if last is None else last.seq
            record = msgspec.structs.replace(end, prev=prev)
            try:
                await self.append(rid, record)
            except CasConflict:
                continue
            except BrokerUnavailable:
                if attempt == attempts - 1:
                    raise
                may_be_stored = True
                continue
            return prev
        raise BrokerUnavailable(f"could not end {rid}: its ownership log kept changing")

    async def is_held_by(self, rid: str, worker: str, claim_seq: int) -> bool:
        """Whether this claim of this worker is the last word on the request."""
        last = await self.last(rid)
        return (
            last is not None
            and last.seq == claim_seq
            and isinstance(last.record, Claim)
            and last.record.worker == worker
        )

    async def _stored(self, message: StoredMessage) -> StoredRecord | None:
        """None for what is no record, such as one of a level under which nobody may write."""
        try:
            record = await self.level.decoded(decode_ownership, message.data)
        except ProtocolError as exc:
            log.debug("no_ownership_record", subject=message.subject, error=str(exc))
            return None
        return StoredRecord(message.seq, message.time, record)
