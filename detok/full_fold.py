"""Folds one request from the log alone: for what a detokenizer does not know by itself."""

from __future__ import annotations

import asyncio

from shared.cluster import Cluster
from shared.errors import BrokerUnavailable
from shared.protocol.log_records import Claim
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from shared.token_log.past_reader import PastReader
from shared.token_log.request_past import RequestPast

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
    subjects = cluster.subjects
    reader = PastReader(cluster.js, subjects, subjects.partition(rid), cluster.malformed)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            last = records[-1].record
            if isinstance(last, Claim):  # what it has written by now counts, as far as it is seen
                up_to_seq = max(up_to_seq, await reader.last_seq(last.worker))
            past = RequestPast(rid, records, up_to_seq + 1)
            await reader.read([past])
    except TimeoutError as exc:
        raise BrokerUnavailable(f"could not read the log of {rid} up to {up_to_seq}") from exc
    return past.fold()
