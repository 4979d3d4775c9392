"""Folds one request from the log alone: for what a detokenizer does not know by itself."""

from __future__ import annotations

import asyncio

from shared.cluster import Cluster
from shared.codec import decode_ownership, decode_token_frame
from shared.errors import BrokerUnavailable, ProtocolError
from shared.event_wait import wait_event
from shared.fold import RequestFold
from shared.log_reader import LogReader
from shared.ownership import StoredRecord
from shared.protocol.log_records import Claim

_TIMEOUT_S = 10.0
_MAX_ATTEMPTS = 10


async def fold_from_log(cluster: Cluster, rid: str, up_to_seq: int = 0) -> RequestFold | None:
    """The fold of everything up to `up_to_seq`, at least, and up to the last ownership record.

    None when nobody has claimed or ended the request. Raises BrokerUnavailable.
    """
    for _ in range(_MAX_ATTEMPTS):
        records = await cluster.ownership.read(rid)
        if not records:
            return None
        fold = await _read(cluster, rid, records, max(up_to_seq, records[-1].seq))
        last = await cluster.ownership.last(rid)
        # A record that came meanwhile may have fenced the writer whose frames were counted.
        if last is not None and last.seq == records[-1].seq:
            return fold
    raise BrokerUnavailable(f"the ownership log of {rid} kept changing")


async def _read(
    cluster: Cluster, rid: str, records: list[StoredRecord], up_to_seq: int
) -> RequestFold:
    """Read until `up_to_seq` itself came out of one consumer: proof that nothing is missing."""
    subjects = cluster.subjects
    partition = subjects.partition(rid)
    own_subject = subjects.ownership(rid)
    writers = {stored.record.worker for stored in records if isinstance(stored.record, Claim)}
    fold = RequestFold(rid)
    reached = asyncio.Event()

    def on_message(subject: str, seq: int, data: bytes) -> None:
        try:
            if subject == own_subject:
                fold.apply_record(seq, decode_ownership(data))
            else:
                _apply_frame(fold, data)
        except ProtocolError:
            return  # the partition's reader counts and logs it

    def on_caught_up() -> None:
        if reader.next_seq > up_to_seq:
            reached.set()

    reader = LogReader(
        cluster.nc,
        subjects.tokens_stream,
        [own_subject, *sorted(subjects.tokens(partition, writer) for writer in writers)],
        records[0].seq,
        on_message,
        on_caught_up,
    )
    task = asyncio.create_task(reader.run())
    try:
        if not await wait_event(reached, _TIMEOUT_S):
            raise BrokerUnavailable(f"could not read the log of {rid} up to {up_to_seq}")
    finally:
        task.cancel()
        await asyncio.wait([task])
    return fold


def _apply_frame(fold: RequestFold, data: bytes) -> None:
    frame = decode_token_frame(data)
    for entry in frame.entries:
        if entry.rid == fold.rid:
            fold.apply_entry(frame.worker, entry)
