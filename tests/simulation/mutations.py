"""Safeguards of the protocol taken out one at a time: the simulation must notice each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import msgspec

from detok.decode_status import DecodeStatus, RebuildPoint
from detok.lease import Lease
from detok.owner_table import OwnerTable
from frontend.text.text_stream import TextStream
from shared.broker.kv_bucket import KvBucket
from shared.protocol.codec import encode
from shared.protocol.leases import LeaseRecord
from shared.protocol.log_records import (
    Claim,
    End,
    OwnershipRecord,
    Release,
    Restatement,
    TokenEntry,
)
from shared.protocol.request import GenerateRequest
from shared.protocol.text import TextChunk
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import OwnershipLog, StoredRecord
from shared.token_log.request_past import RequestPast, _Epoch
from tests.simulation.rule_worker import RuleWorker
from worker.affinity.pool_roles import PoolRoles
from worker.claims.log_history import LogHistory
from worker.held.held_request import LoggedOutput
from worker.runs.token_log import PartitionWriter
from worker.settlement.settler import Settler

Patch = Callable[[], Any]


def _fold_ignores_epochs() -> Any:
    original = RequestFold.apply_entry

    def apply_entry(self: RequestFold, worker: str, entry: TokenEntry) -> int:
        return original(self, self.writer, msgspec.structs.replace(entry, epoch=self.epoch))

    return patch.object(RequestFold, "apply_entry", apply_entry)


def _appends_without_cas(kind: type) -> Any:
    original = OwnershipLog.append

    async def append(self: OwnershipLog, rid: str, record: OwnershipRecord) -> int:
        if not isinstance(record, kind):
            return await original(self, rid, record)
        return (await self._js.publish(self._subjects.ownership(rid), encode(record))).seq

    return patch.object(OwnershipLog, "append", append)


def _ack_confirms_alone() -> Any:
    def on_ack(self: PartitionWriter, number: int, seq: int) -> None:
        frame = self._by_number.pop(number, None)
        if frame is None:
            return
        self._sent.remove(frame)
        for entry in frame.finishing:
            self._on_finish_confirmed(entry, seq)

    return patch.object(PartitionWriter, "on_ack", on_ack)


def _floor_at_any_restatement() -> Any:
    def on_counted_entry(
        self: RebuildPoint, seq: int, position: int, end: int, num_tokens: int
    ) -> None:
        if position == 0:
            self.seq, self._candidate = seq, 0

    return patch.object(RebuildPoint, "on_counted_entry", on_counted_entry)


def _nothing_is_resent() -> Any:
    return patch.object(PartitionWriter, "frames_to_resend", lambda *_, **__: [])


def _fenced_finish_is_acked() -> Any:
    async def is_fenced(*_: Any) -> bool:
        return False

    return patch.object(Settler, "_is_fenced", is_fenced)


def _any_finish_is_acked() -> Any:
    """By a detokenizer, also one that does not count: of a past epoch, or behind a hole."""
    original = DecodeStatus.apply_entry
    seen: WeakSet[DecodeStatus] = WeakSet()

    def apply_entry(self: DecodeStatus, seq: int, worker: str, entry: TokenEntry) -> int:
        if entry.finish is not None:
            seen.add(self)
        return original(self, seq, worker, entry)

    def is_for_us_to_ack(self: DecodeStatus) -> bool:
        return self in seen and self.claim is not None and self.claim.is_acked_by_reader

    return patch.multiple(
        DecodeStatus, apply_entry=apply_entry, is_for_us_to_ack=property(is_for_us_to_ack)
    )


def _nak_without_release() -> Any:
    """What another worker may have claimed by now is given back, and the log does not say so."""
    return patch.object(Settler, "_is_released", _true)


async def _true(*_: Any) -> bool:
    return True


def _leases_without_cas() -> Any:
    original = KvBucket.put_if

    async def put_if(self: KvBucket, key: str, value: bytes, revision: int) -> int:
        if self._stream.endswith("_owners"):
            return await self.put(key, value)
        return await original(self, key, value, revision)

    return patch.object(KvBucket, "put_if", put_if)


def _lease_is_kept_after_its_end() -> Any:
    def is_valid(self: Lease) -> bool:
        return time.monotonic() < self.valid_until + 5.0

    return patch.object(Lease, "is_valid", property(is_valid))


def _lease_is_renewed_after_its_end() -> Any:
    """Whoever ended it is not heard."""

    async def write_lease(self: OwnerTable, record: LeaseRecord, _: int) -> int:
        return await self._bucket.put(f"lease-{record.nonce}", encode(record))

    return patch.object(OwnerTable, "write_lease", write_lease)


def _who_decodes_never_pulls() -> Any:
    return patch.object(PoolRoles, "pulls", property(lambda self: self.role != "decode"))


def _release_is_the_end_of_the_past() -> Any:
    """Whoever is handed a request goes on behind what its giver had, whatever came then."""
    original = RuleWorker.read

    async def read(
        self: RuleWorker, rid: str, records: list[StoredRecord], claim_seq: int
    ) -> RequestFold:
        releases = [idx for idx, each in enumerate(records) if isinstance(each.record, Release)]
        if not releases:
            return await original(self, rid, records, claim_seq)
        told = records[: releases[0] + 1]
        return await original(self, rid, told, told[-1].seq + 1)

    return patch.object(RuleWorker, "read", read)


def _history_is_not_read() -> Any:
    async def read(_: LogHistory, rid: str, *__: Any) -> RequestFold:
        return RequestFold(rid)

    return patch.object(LogHistory, "read", read)


def _any_restatement_is_whole() -> Any:
    return patch.object(_Epoch, "is_whole_without", lambda *_: True)


def _restatement_hides_what_came_after() -> Any:
    """A late copy of it is taken for the newest that its worker has written."""

    def last_restatement(self: _Epoch) -> Restatement | None:
        told = [entry.restates for _, entry in self.entries if entry.restates is not None]
        return told[-1] if told else None

    return patch.object(_Epoch, "last_restatement", last_restatement)


def _restating_is_progress() -> Any:
    return patch.object(RequestPast, "_note_progress", lambda *_: None)


def _client_splices() -> Any:
    original = TextStream.receive

    def receive(self: TextStream, chunk: TextChunk, now: float) -> None:
        if chunk.offset > self.have:
            chunk = msgspec.structs.replace(chunk, offset=self.have)
        self.keeps_token_ids, keeps = False, self.keeps_token_ids
        original(self, chunk, now)
        self.keeps_token_ids = keeps

    return patch.object(TextStream, "receive", receive)


MUTATIONS: dict[str, Patch] = {
    "the fold ignores epochs": _fold_ignores_epochs,
    "claims without compare-and-set": lambda: _appends_without_cas(Claim),
    "nothing is resent": _nothing_is_resent,
    "a fenced finish is acknowledged": _fenced_finish_is_acked,
    "a nak without a stored release": _nak_without_release,
    "leases without compare-and-set": _leases_without_cas,
    "a lease outlives its time": _lease_is_kept_after_its_end,
    "a lease renewed too late": _lease_is_renewed_after_its_end,
    "a resumed run does not read the log": _history_is_not_read,
    "a client splices over a gap": _client_splices,
    "a worker that decodes never pulls": _who_decodes_never_pulls,
}


# In stories of the rules alone.
def _given_is_forgotten() -> Any:
    def known(_: GenerateRequest, fold: RequestFold) -> LoggedOutput:
        return LoggedOutput.of(fold)

    return patch.object(LoggedOutput, "known", known)


RULE_MUTATIONS: dict[str, Patch] = {
    "the fold ignores epochs": _fold_ignores_epochs,
    "claims without compare-and-set": lambda: _appends_without_cas(Claim),
    "releases without compare-and-set": lambda: _appends_without_cas(Release),
    "ends without compare-and-set": lambda: _appends_without_cas(End),
    "a frame is confirmed by its own ack alone": _ack_confirms_alone,
    "a fenced finish is acknowledged": _fenced_finish_is_acked,
    "a finish that does not count is acknowledged": _any_finish_is_acked,
    "a floor at any restatement": _floor_at_any_restatement,
    "a restatement is whole whatever it restates": _any_restatement_is_whole,
    "a restatement hides what was written after it": _restatement_hides_what_came_after,
    "restating is progress": _restating_is_progress,
    "a release is the end of the past": _release_is_the_end_of_the_past,
    "a fork goes on from as much of it as was restated": _given_is_forgotten,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code without one safeguard."""
    with MUTATIONS[name]():
        yield
