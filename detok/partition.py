"""One partition of the token log: read in order, folded, decoded, and said to who listens."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from detok.bill_writer import BillWriter, bill_of
from detok.decode_spans import DecodeSpans
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.done_writer import DoneWriter, SettledRequest, SettledRequests
from detok.fence_notices import FenceNotices
from detok.floor_keeper import FloorKeeper, LowestPoint
from detok.lease import Tenure
from detok.partial_requests import PartialRequests, SeenEntry, SeenRecord, UnknownRequest
from detok.replay_service import ReplayService, WaitingSubjects
from detok.text_outbox import TextOutbox, UnpublishedText
from detok.tokenizer_cache import TokenizerCache
from detok.worker_watch import Holders, WorkerWatch
from shared.broker.log_reader import LogReader
from shared.cluster import Cluster
from shared.errors import MalformedMessage, NewerLevel, ProtocolError
from shared.liveness.log_watch import LogMark
from shared.nats_client.connection_end import end_subscription
from shared.protocol.codec import decode_ownership, decode_token_frame
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release, TokenEntry
from shared.protocol.text import TextChunk
from shared.subjects import is_rid, rid_of
from shared.telemetry.log import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DetokServices:
    """What all partitions of a detokenizer share."""

    cluster: Cluster
    tokenizers: TokenizerCache
    outbox: TextOutbox
    done_writer: DoneWriter
    spans: DecodeSpans
    notices: FenceNotices
    worker_watch: WorkerWatch
    stats: DetokStats


class Partition:
    """Publishes, and writes floors and DONE, while its tenure is valid; folds without, too.

    While catching up it folds in silence; then each live request's whole text is sent once.
    """

    def __init__(self, services: DetokServices, tenure: Tenure) -> None:
        self._services = services
        self._stats = services.stats
        self.tenure = tenure
        self.number = tenure.partition
        subjects = services.cluster.subjects
        self._token_prefix = subjects.tokens(self.number, "")
        self._requests: dict[str, DecodeStatus] = {}
        self._lowest = LowestPoint(self._requests)
        self.holders = Holders()  # of those
        self._unknown: dict[str, UnknownRequest] = {}
        self._partial = PartialRequests(
            services.cluster, self._requests, self.holders, self._mark_dirty
        )
        self._settled = SettledRequests()
        self._bills = BillWriter(services.cluster, self.number, services.stats)
        self._unbilled: set[tuple[int, str]] = set()  # places of ends whose bills are being made
        self._unpublished = UnpublishedText(services.tokenizers, self._finish)
        self._waiting = WaitingSubjects()
        self._reader: LogReader | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.is_caught_up = False
        self._num_doubts = 0  # messages of a newer build, of which the level has not been read
        self._reported_seq = 0  # the frame that was complained of last
        self._replays = ReplayService(
            services.cluster,
            services.tokenizers,
            self._waiting,
            services.stats,
            self._requests.get,
            lambda: self.may_publish,
        )

    # What others may ask

    @property
    def may_publish(self) -> bool:
        return self.is_caught_up and self.tenure.is_valid and not self._num_doubts

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_pending(self) -> int:
        return 0 if self._reader is None else self._reader.num_pending

    @property
    def last_seen(self) -> LogMark:
        """The last record of the log that was read."""
        reader = self._reader
        return LogMark(0) if reader is None else LogMark(reader.next_seq - 1, reader.last_data)

    def _floor(self) -> int | None:
        """The lowest sequence that a new owner must read from."""
        if self._reader is None or not self.may_publish:
            return None
        floors = [self._reader.next_seq, self._lowest.seq(), self._bills.floor]
        floors += (unknown.seq for unknown in self._unknown.values())
        return min(floor for floor in floors if floor is not None)

    def _billed_to(self) -> int | None:
        """Up to there, whoever has ended is among the bills."""
        if self._reader is None or not self.may_publish:
            return None
        open_ends = [place for place, _ in self._unbilled]
        open_ends += (each.seq for each in self._unknown.values())
        return min([self._reader.next_seq, *open_ends]) - 1

    def _bill(self, status: DecodeStatus, place: int, time_s: float) -> None:
        """Its end is in the log there."""
        status.place, status.ended_at = place, time_s
        status.bill = bill_of(status)
        self._bills.add(status.bill, status.rebuild_point.seq)

    # Running

    async def run(self) -> None:
        """Read, decode and answer until cancelled."""
        cluster = self._services.cluster
        subjects = cluster.subjects
        floor_keeper = FloorKeeper(cluster, self.number)
        self._reader = LogReader(
            cluster.js,
            subjects.tokens_stream,
            [
                subjects.ownership_of_partition(self.number),
                subjects.tokens_of_partition(self.number),
            ],
            await floor_keeper.load(),
            self._on_message,
            self._on_caught_up,
        )
        subscription = await cluster.nc.subscribe(subjects.replay(self.number), cb=self._on_replay)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._reader.run())
                tasks.create_task(floor_keeper.run(self._floor))
                tasks.create_task(self._bills.run(self._billed_to))
                tasks.create_task(self._partial.run())
                try:
                    await asyncio.Event().wait()  # until cancelled, or one of them failed
                finally:
                    self._tasks = None  # who asks now asks the next owner again
        finally:
            await end_subscription(subscription)

    def on_reconnect(self) -> None:
        """The connection to the broker was lost and is back."""
        if self._reader is not None:
            self._reader.look_soon()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            self._tasks.create_task(work)

    async def _on_replay(self, message: Msg) -> None:
        if not self.tenure.is_over:
            self._spawn(self._replays.answer(message))

    # Reading

    def _on_message(self, subject: str, seq: int, data: bytes) -> None:
        try:
            if subject.startswith(self._token_prefix):
                self._on_frame(seq, subject, data)
            else:
                self._on_record(seq, rid_of(subject), decode_ownership(data))
        except ProtocolError as exc:
            self._services.cluster.malformed.note(subject, exc)
            log.warning("malformed_log_message", subject=subject, seq=seq, error=str(exc))
            if isinstance(exc, NewerLevel):
                self._num_doubts += 1
                self._spawn(self._settle_doubt())

    async def _settle_doubt(self) -> None:
        """What this build cannot read decides whose tokens count: until it is known that nobody may
        write so, nothing is said. Once it is known that somebody may, this detokenizer leaves.
        """
        level = self._services.cluster.level
        await level.settle_doubt()
        if not level.outdated.is_set():
            self._num_doubts -= 1
            self.publish_rest()

    def _on_frame(self, seq: int, subject: str, data: bytes) -> None:
        frame = decode_token_frame(data, functools.partial(self._on_unreadable_entry, subject, seq))
        worker = frame.worker
        if subject != self._token_prefix + worker:
            raise MalformedMessage(f"a frame of worker {worker!r} on {subject}")
        self._stats.frames += 1
        self._services.worker_watch.heard(worker)
        requests, time_s = self._requests, self._time_s
        for entry in frame.entries:
            status = requests.get(entry.rid)
            if status is None:
                self._on_unknown_entry(seq, worker, entry)
            else:
                self._apply_entry(status, seq, worker, entry, time_s)

    def _on_unreadable_entry(self, subject: str, seq: int, error: ProtocolError) -> None:
        self._services.cluster.malformed.note(subject, error)
        log.warning("unreadable_entry", subject=subject, seq=seq, error=str(error))

    def _on_record(self, seq: int, rid: str, record: OwnershipRecord) -> None:
        status = self._requests.get(rid)
        if status is not None:
            self._apply_record(status, seq, record, self._time_s)
        elif rid in self._unknown:
            self._unknown[rid].seen.append(SeenRecord(seq, record, self._time_s))
        elif record.prev == 0 and not isinstance(record, Release):
            self._settled.forget(rid)
            status = self._add(DecodeStatus(rid, seq))
            self._apply_record(status, seq, record, self._time_s)
        elif rid not in self._settled:
            self._meet(rid, seq, SeenRecord(seq, record, self._time_s))

    def _on_unknown_entry(self, seq: int, worker: str, entry: TokenEntry) -> None:
        rid = entry.rid
        if rid in self._unknown:
            self._unknown[rid].seen.append(SeenEntry(seq, worker, entry, self._time_s))
        elif (settled := self._settled.get(rid)) is not None:
            if settled.is_stale(entry.epoch):
                self._on_stale_entry(settled.pool, worker, entry)
        elif not is_rid(rid) or self._services.cluster.subjects.partition(rid) != self.number:
            error = MalformedMessage(f"an entry of {rid[:32]!r} in partition {self.number}")
            self._services.cluster.malformed.note(self._token_prefix, error)
            if seq != self._reported_seq:  # once a frame
                self._reported_seq = seq
                log.warning("entry_in_wrong_partition", rid=rid[:32], worker=worker, seq=seq)
        else:
            self._meet(rid, seq, SeenEntry(seq, worker, entry, self._time_s))

    # Folding

    def _add(self, status: DecodeStatus) -> DecodeStatus:
        self._requests[status.rid] = status
        self._lowest.note(status)
        self.holders.note(status)
        subject = self._waiting.take(status.rid)
        if subject is not None:
            status.add_subject(subject)
        return status

    def _apply_record(
        self, status: DecodeStatus, seq: int, record: OwnershipRecord, time_s: float
    ) -> None:
        fold, old_claim = status.fold, status.claim
        old_epoch, old_writer = fold.epoch, fold.writer
        was_finished = fold.finish is not None
        status.apply_record(seq, record, time_s)
        if was_finished:
            return
        if isinstance(record, Claim):
            status.claimed_at = time.monotonic()
            if old_writer and old_claim is not None and self.may_publish:
                self._services.notices.send(old_claim.pool, fold.rid, old_epoch, old_writer)
            self.holders.note(status)
            self._services.worker_watch.note_claim(record.worker)
        elif isinstance(record, Release):
            self.holders.note(status)
        elif isinstance(record, End):
            self._on_finish(status, seq, time_s)

    def _apply_entry(
        self, status: DecodeStatus, seq: int, worker: str, entry: TokenEntry, time_s: float
    ) -> None:
        fold = status.fold
        was_finished = fold.finish is not None
        num_new = status.apply_entry(seq, worker, entry)
        if entry.cost is not None and entry.cost is fold.cost:
            status.reported_at = time_s
        if num_new:
            self._stats.tokens += num_new
        elif fold.finish is None or was_finished:
            self._on_nothing_new(status, seq, worker, entry, time_s)
        if fold.finish is not None and not was_finished:
            self._on_finish(status, seq, time_s)
        elif num_new and not status.is_dirty and status.is_worth_a_look:
            self._mark_dirty(status)

    def _on_nothing_new(
        self, status: DecodeStatus, seq: int, worker: str, entry: TokenEntry, time_s: float
    ) -> None:
        """A resend, a restatement, a hole, or an entry that counts no more."""
        fold = status.fold
        pool = "" if status.claim is None else status.claim.pool
        if entry.epoch != fold.epoch or worker != fold.writer:
            self._on_stale_entry(pool, worker, entry)
        elif fold.finish is not None:
            if status.was_ended:
                self._on_stale_entry(pool, worker, entry)
        elif entry.position > fold.epoch_len:
            self._stats.holes += 1
            if status.is_partial and entry.finish is not None:
                self._begin_complete(status, seq, time_s)

    def _on_stale_entry(self, pool: str, worker: str, entry: TokenEntry) -> None:
        self._stats.fenced_entries += 1
        if pool and self.may_publish:
            self._services.notices.send(pool, entry.rid, entry.epoch, worker)

    def _on_finish(self, status: DecodeStatus, seq: int, time_s: float) -> None:
        if status.is_partial:
            self._begin_complete(status, seq, time_s)
        else:
            self._bill(status, seq, time_s)
            self._mark_dirty(status)

    @property
    def _time_s(self) -> float:
        """When what is being read was stored, in unix seconds."""
        assert self._reader is not None
        return self._reader.time_s

    def _begin_complete(self, status: DecodeStatus, seq: int, time_s: float) -> None:
        self._unbilled.add((seq, status.rid))
        self._spawn(self._complete(status, seq, time_s))

    # Requests met in the middle of their log

    def _meet(self, rid: str, seq: int, first: SeenEntry | SeenRecord) -> None:
        unknown = self._unknown[rid] = UnknownRequest(rid, seq, [first])
        self._spawn(self._resolve(unknown))

    async def _resolve(self, unknown: UnknownRequest) -> None:
        done, status = await self._partial.past_of(unknown)
        if done is not None:  # until its response has it, too, this request holds the floor
            bill = await self._services.done_writer.keep_done(unknown.rid, done)
            if bill is not None:
                self._bills.add(bill, unknown.seq)
        # No await from here on: what is read next goes to the request itself.
        del self._unknown[unknown.rid]
        if status is None:
            self._settled.add(unknown.rid, SettledRequest(0, "", was_ended=False))
            return
        self._add(status)
        if status.fold.finish is not None:
            self._on_finish(status, status.fold.last_record_seq, status.reported_at)
        for seen in unknown.seen:
            if isinstance(seen, SeenEntry):
                self._apply_entry(status, seen.seq, seen.worker, seen.entry, seen.time_s)
            else:
                self._apply_record(status, seen.seq, seen.record, seen.time_s)

    async def _complete(self, status: DecodeStatus, seq: int, time_s: float) -> None:
        """A request that is known in part has ended: fold all of it, up to `seq`."""
        try:
            await self._partial.complete(status, seq)
        finally:
            self._unbilled.discard((seq, status.rid))
        if status.fold.finish is not None and not status.is_partial and not status.place:
            self._bill(status, seq, time_s)
            self._mark_dirty(status)

    # Sending

    def _on_caught_up(self) -> None:
        if self.is_caught_up:
            return
        self.is_caught_up = True
        log.info("partition_caught_up", partition=self.number, num_live=len(self._requests))
        for status in self._requests.values():
            self._mark_dirty(status)

    def publish_rest(self) -> None:
        """Requests may have waited: for their tokenizer, or for a valid tenure."""
        if self._unpublished:
            self._services.outbox.mark(self)

    def _mark_dirty(self, status: DecodeStatus) -> None:
        self._unpublished.add(status)
        if self.is_caught_up:
            self._services.outbox.mark(self)

    def collect(self) -> Iterator[tuple[list[str], TextChunk]]:
        """What is new: reply subjects and chunk of each request."""
        if self.may_publish:
            yield from self._unpublished.take()

    def _finish(self, status: DecodeStatus) -> None:
        """Should its acknowledgement be lost, whoever it is delivered to finds it over."""
        if status.is_for_us_to_ack:
            assert status.claim is not None
            self._services.outbox.acknowledge(status.rid, status.claim.ack_subject)
        if status.has_failed and self._reader is not None:
            status.place, status.ended_at = self._reader.next_seq, self._time_s
            self._unbilled.add((status.place, status.rid))
        self._spawn(self._write_done(status))

    async def _write_done(self, status: DecodeStatus) -> None:
        is_ours = await self._services.done_writer.write(status)
        if is_ours and status.has_failed:  # what is not in the log, nobody else makes again
            self._bills.add(bill_of(status), status.rebuild_point.seq)
        self._unbilled.discard((status.place, status.rid))
        self._services.spans.record(status, self.number)
        self._requests.pop(status.rid, None)
        self.holders.drop(status.rid)
        pool = "" if status.claim is None else status.claim.pool
        self._settled.add(
            status.rid, SettledRequest(status.fold.epoch, pool, was_ended=status.was_ended)
        )
