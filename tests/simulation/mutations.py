"""Safeguards of the protocol taken out one at a time: the simulation must notice each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from detok.lease_keeper import LeaseKeeper
from detok.rebuild_point import RebuildPoint
from frontend.text_stream import TextStream
from shared.codec import encode
from shared.errors import BrokerError
from shared.fold import RequestFold
from shared.kv_bucket import KvBucket
from shared.ownership import OwnershipLog
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release, TokenEntry
from shared.protocol.text import TextChunk
from worker.hand_over import HandOver
from worker.log_history import LogHistory
from worker.settler import Settler
from worker.token_log import PartitionWriter

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


def _nak_without_release() -> Any:
    """What another worker may have claimed by now is given back, and the log does not say so."""
    return patch.object(HandOver, "_is_released", _true)


async def _true(*_: Any) -> bool:
    return True


def _leases_without_cas() -> Any:
    original = KvBucket.put_if

    async def put_if(self: KvBucket, key: str, value: bytes, revision: int) -> int:
        if self._stream.endswith("_leases"):
            return await self.put(key, value)
        return await original(self, key, value, revision)

    return patch.object(KvBucket, "put_if", put_if)


def _lease_is_kept_after_its_end() -> Any:
    original = LeaseKeeper._renew

    async def renew(self: LeaseKeeper, lease: Any) -> None:
        with contextlib.suppress(BrokerError):
            await original(self, lease)
        lease.valid_until += 5.0

    return patch.object(LeaseKeeper, "_renew", renew)


def _history_is_not_read() -> Any:
    async def read(_: LogHistory, rid: str, *__: Any) -> RequestFold:
        return RequestFold(rid)

    return patch.object(LogHistory, "read", read)


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
    "a resumed run does not read the log": _history_is_not_read,
    "a client splices over a gap": _client_splices,
}


# In stories of the rules alone.
RULE_MUTATIONS: dict[str, Patch] = {
    "the fold ignores epochs": _fold_ignores_epochs,
    "claims without compare-and-set": lambda: _appends_without_cas(Claim),
    "releases without compare-and-set": lambda: _appends_without_cas(Release),
    "ends without compare-and-set": lambda: _appends_without_cas(End),
    "a frame is confirmed by its own ack alone": _ack_confirms_alone,
    "a fenced finish is acknowledged": _fenced_finish_is_acked,
    "a floor at any restatement": _floor_at_any_restatement,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code without one safeguard."""
    with MUTATIONS[name]():
        yield
