"""Ends a request from outside: the record that decides it, and who needs to know at once."""

from __future__ import annotations

import contextlib

import nats.errors

from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict
from shared.protocol.codec import encode
from shared.protocol.log_records import End, OwnershipRecord
from shared.protocol.notices import Cancel


async def end_request(cluster: Cluster, rid: str, pool: str, end: End) -> bool:
    """Whatever it does now. False when it had ended before.

    Raises BrokerError.
    """
    prev = await cluster.ownership.end(rid, end)
    await _notify_workers(cluster, rid, pool)
    if prev == 0:
        await _leave_queue(cluster, rid)
    return prev is not None


async def end_unclaimed(
    cluster: Cluster, rid: str, pool: str, end: End, *, may_be_stored: bool = False
) -> None:
    """The ownership log itself decides who was first, a worker or we.

    `may_be_stored` tells that the answer to an earlier try of ours was lost. Raises CasConflict
    when it is claimed or has ended otherwise, or BrokerError.
    """
    try:
        await cluster.ownership.append(rid, end)
    except CasConflict:
        if not may_be_stored or not await _was_ended_by(cluster, rid, end.by):
            raise
    await _notify_workers(cluster, rid, pool)
    await _leave_queue(cluster, rid)


async def last_word(cluster: Cluster, rid: str, end: End) -> OwnershipRecord | None:
    """The last record of a request that is in the queue no more; `end`, written now, of one that
    was never there: should its frontend wake up and queue it, nobody runs it.

    None: it is queued, or somebody was faster just now. The log is read first: what has been
    claimed was in the queue, and leaves it at its end alone. Raises BrokerError.
    """
    last = await cluster.ownership.last(rid)
    if await cluster.queue.has(rid):
        return None
    if last is not None:
        return last.record
    try:
        await cluster.ownership.append(rid, end)
    except CasConflict:
        return None  # claimed, or ended by somebody else: next time
    return end


async def _was_ended_by(cluster: Cluster, rid: str, by: str) -> bool:
    last = await cluster.ownership.last(rid)
    return last is not None and isinstance(last.record, End) and last.record.by == by


async def _notify_workers(cluster: Cluster, rid: str, pool: str) -> None:
    """Tells those that run it, or are about to."""
    with contextlib.suppress(nats.errors.Error):
        await cluster.nc.publish(cluster.subjects.control(pool), encode(Cancel(rid)))


async def _leave_queue(cluster: Cluster, rid: str) -> None:
    """Before a worker has it: one that is started for what waits would find nothing to do."""
    with contextlib.suppress(BrokerError):  # whoever is given it drops it
        await cluster.queue.remove(rid)
