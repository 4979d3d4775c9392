"""Reads back what earlier workers logged of a request, to go on from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.errors import BrokerUnavailable
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from shared.token_log.past_reader import PastReader
from shared.token_log.request_past import RequestPast


@dataclass(slots=True, eq=False)
class _Inquiry:
    """One request whose past is wanted, up to our own claim."""

    rid: str
    records: list[StoredRecord]
    claim_seq: int  # of our claim: nothing at or beyond it is read
    fold: RequestFold | None = None  # once it is known


class LogHistory:
    """Folds the past of requests. Those that ask at the same time share one read of a partition.

    A read serves a request only if it started after that request's claim was stored: then what the
    leader says of the frames before it leaves none out.
    """

    def __init__(self, cluster: Cluster, timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        num_partitions = cluster.subjects.num_partitions
        self._waiting: list[list[_Inquiry]] = [[] for _ in range(num_partitions)]
        self._reading = [asyncio.Lock() for _ in range(num_partitions)]

    async def read(self, rid: str, records: list[StoredRecord], claim_seq: int) -> RequestFold:
        """What the log says of a request up to our claim, given the records before the claim.

        Raises BrokerUnavailable when the log cannot be read in time.
        """
        inquiry = _Inquiry(rid, records, claim_seq)
        partition = self._cluster.subjects.partition(rid)
        self._waiting[partition].append(inquiry)
        try:
            async with self._reading[partition]:
                if inquiry.fold is None:  # the reads before ours began too early for us
                    await self._read_for_all(partition)
        finally:
            if inquiry in self._waiting[partition]:
                self._waiting[partition].remove(inquiry)
        assert inquiry.fold is not None
        return inquiry.fold

    async def _read_for_all(self, partition: int) -> None:
        """Answer everybody who waits for this partition by now."""
        inquiries, self._waiting[partition] = self._waiting[partition], []
        pasts = [RequestPast(one.rid, one.records, one.claim_seq) for one in inquiries]
        cluster = self._cluster
        reader = PastReader(cluster.js, cluster.subjects, partition, cluster.malformed)
        try:
            async with asyncio.timeout(self._timeout_s):
                await reader.read(pasts)
        except TimeoutError as exc:
            raise BrokerUnavailable("reading the token log took too long") from exc
        finally:  # who got no answer from us asks again, as soon as we let go of the lock
            for inquiry, past in zip(inquiries, pasts, strict=True):
                if past.wants is None:
                    inquiry.fold = past.fold()
                else:
                    self._waiting[partition].append(inquiry)
