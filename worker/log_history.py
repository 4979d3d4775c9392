"""Reads back what earlier workers logged of a request, to go on from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.codec import decode_ownership, decode_token_frame
from shared.errors import BrokerUnavailable, ProtocolError
from shared.fold import RequestFold
from shared.log import get_logger
from shared.log_reader import LogReader
from shared.ownership import StoredRecord
from shared.protocol.log_records import Claim
from shared.subjects import rid_of

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Inquiry:
    """One request whose past is wanted: the fold up to our own claim."""

    fold: RequestFold
    first_seq: int  # of the first ownership record
    claim_seq: int  # of our claim: nothing at or beyond it is read
    writers: set[str]
    is_answered: bool = False  # our own claim came out of the log: the fold is whole


class LogHistory:
    """Folds the past of requests. Those that ask at the same time share one read of a partition.

    A read serves a request only if it started after that request's claim was stored, and it ends
    when our own claim comes out of the log: then nothing before the claim can be missing.
    """

    def __init__(self, cluster: Cluster, timeout_s: float = 30.0) -> None:
        self._nc = cluster.nc
        self._subjects = subjects = cluster.subjects
        self._malformed = cluster.malformed
        self._timeout_s = timeout_s
        self._waiting: list[list[_Inquiry]] = [[] for _ in range(subjects.num_partitions)]
        self._reading = [asyncio.Lock() for _ in range(subjects.num_partitions)]

    async def read(self, rid: str, records: list[StoredRecord], claim_seq: int) -> RequestFold:
        """What the log says of a request up to our claim, given the records before the claim.

        Raises BrokerUnavailable when the log cannot be read in time.
        """
        writers = {stored.record.worker for stored in records if isinstance(stored.record, Claim)}
        inquiry = _Inquiry(RequestFold(rid), records[0].seq, claim_seq, writers)
        partition = self._subjects.partition(rid)
        self._waiting[partition].append(inquiry)
        try:
            async with self._reading[partition]:
                if not inquiry.is_answered:  # the reads before ours began too early for us
                    await self._read_for_all(partition)
        finally:
            if inquiry in self._waiting[partition]:
                self._waiting[partition].remove(inquiry)
        return inquiry.fold

    async def _read_for_all(self, partition: int) -> None:
        """Answer everybody who waits for this partition by now."""
        inquiries, self._waiting[partition] = self._waiting[partition], []
        for inquiry in inquiries:  # a read that was cut may have begun to fill it
            inquiry.fold = RequestFold(inquiry.fold.rid)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read_round(partition, inquiries)
        except TimeoutError as exc:
            raise BrokerUnavailable("reading the token log took too long") from exc
        finally:  # who got no answer from us asks again, as soon as we let go of the lock
            self._waiting[partition] += [one for one in inquiries if not one.is_answered]

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
                self._malformed.note(subject, exc)
                log.warning("log_message_unreadable", subject=subject, seq=seq, error=str(exc))
                return
            for inquiry in by_rid[rid_of(subject)]:
                if seq < inquiry.claim_seq:
                    inquiry.fold.apply_record(seq, record)
                elif seq == inquiry.claim_seq:
                    inquiry.is_answered = True
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
