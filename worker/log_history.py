"""Reads back what earlier workers logged of a request, to go on from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nats.aio.client import Client

from shared.codec import decode_ownership, decode_token_frame
from shared.errors import BrokerUnavailable, ProtocolError
from shared.fold import RequestFold
from shared.log import get_logger
from shared.log_reader import LogReader
from shared.ownership import StoredRecord
from shared.protocol import Claim
from shared.subjects import Subjects, rid_of

log = get_logger(__name__)


@dataclass(slots=True)
class _Inquiry:
    """One request whose past is wanted: the fold up to our own claim."""

    fold: RequestFold
    first_seq: int  # of the first ownership record
    claim_seq: int  # of our claim: nothing at or beyond it is read
    writers: set[str]
    answer: asyncio.Future[RequestFold]

    def settle(self) -> None:
        """Our own claim came out of the log."""
        if not self.answer.done():  # else whoever asked has given up
            self.answer.set_result(self.fold)


class LogHistory:
    """Folds the past of requests. Those that ask at the same time share one read of a partition.

    A read serves a request only if it started after that request's claim was stored, and it ends
    when our own claim comes out of the log: then nothing before the claim can be missing.
    """

    def __init__(self, nc: Client, subjects: Subjects, timeout_s: float = 30.0) -> None:
        self._nc = nc
        self._subjects = subjects
        self._timeout_s = timeout_s
        self._waiting: dict[int, list[_Inquiry]] = {}  # by partition
        self._reading: set[int] = set()

    async def read(self, rid: str, records: list[StoredRecord], claim_seq: int) -> RequestFold:
        """What the log says of a request up to our claim, given the records before the claim.

        Raises BrokerUnavailable when the log cannot be read in time.
        """
        writers = {stored.record.worker for stored in records if isinstance(stored.record, Claim)}
        answer: asyncio.Future[RequestFold] = asyncio.get_running_loop().create_future()
        partition = self._subjects.partition(rid)
        self._waiting.setdefault(partition, []).append(
            _Inquiry(RequestFold(rid), records[0].seq, claim_seq, writers, answer)
        )
        if partition not in self._reading:
            await self._serve(partition)
        return await answer

    async def _serve(self, partition: int) -> None:
        """Answer everybody who waits for this partition, in rounds, until nobody does."""
        self._reading.add(partition)
        try:
            while inquiries := self._waiting.pop(partition, []):
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await self._read_round(partition, inquiries)
                except TimeoutError:
                    self._fail(inquiries, BrokerUnavailable("reading the token log took too long"))
                except BaseException:
                    self._fail(inquiries, BrokerUnavailable("reading the token log was cancelled"))
                    raise
        finally:
            self._reading.discard(partition)
            self._fail(self._waiting.pop(partition, []), BrokerUnavailable("reading was cancelled"))

    async def _read_round(self, partition: int, inquiries: list[_Inquiry]) -> None:
        by_rid: dict[str, list[_Inquiry]] = {}
        for inquiry in inquiries:  # a redelivery may ask while the delivery before it still does
            by_rid.setdefault(inquiry.fold.rid, []).append(inquiry)
        writers = sorted(set().union(*(inquiry.writers for inquiry in inquiries)))
        filters = [self._subjects.ownership(rid) for rid in by_rid]
        filters += [self._subjects.tokens(partition, writer) for writer in writers]
        ended = asyncio.Event()
        num_open = len(inquiries)
        token_prefix = f"{self._subjects.prefix}.tok."

        def on_message(subject: str, seq: int, data: bytes) -> None:
            nonlocal num_open
            try:
                if subject.startswith(token_prefix):
                    self._apply_frame(by_rid, seq, data)
                    return
                record = decode_ownership(data)
            except ProtocolError as exc:
                log.warning("log_message_unreadable", subject=subject, seq=seq, error=str(exc))
                return
            for inquiry in by_rid[rid_of(subject)]:
                if seq < inquiry.claim_seq:
                    inquiry.fold.apply_record(seq, record)
                elif seq == inquiry.claim_seq:
                    inquiry.settle()
                    num_open -= 1
            if num_open == 0:
                ended.set()

        reader = LogReader(
            self._nc,
            self._subjects.tokens_stream,
            filters,
            min(inquiry.first_seq for inquiry in inquiries),
            on_message,
        )
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.run())
            await ended.wait()
            reading.cancel()

    @staticmethod
    def _apply_frame(by_rid: dict[str, list[_Inquiry]], seq: int, data: bytes) -> None:
        frame = decode_token_frame(data)
        for entry in frame.entries:
            for inquiry in by_rid.get(entry.rid, ()):
                if seq < inquiry.claim_seq:
                    inquiry.fold.apply_entry(frame.worker, entry)

    @staticmethod
    def _fail(inquiries: list[_Inquiry], error: BrokerUnavailable) -> None:
        for inquiry in inquiries:
            if not inquiry.answer.done():
                inquiry.answer.set_exception(error)
