"""Erases frames of the token log that hold nothing but tokens of some requests."""

from __future__ import annotations

import datetime
from collections.abc import Container

from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode_token_frame
from shared.protocol.log_records import Claim, End, TokenFrame
from shared.token_log.ownership import StoredRecord


class FrameEraser:
    """The broker deletes whole messages alone, and a frame holds a step of all requests of a
    partition. One that others have a part in stays until the log's age takes it: rewriting it
    would give it another place in the log, and its place is what it counts by.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._subjects = cluster.subjects

    async def erase_request(
        self, rid: str, records: list[StoredRecord]
    ) -> datetime.datetime | None:
        """Erases from its first claim to its finish or end; returns when the last shared one was
        stored.

        Raises BrokerError.
        """
        claims = [stored.seq for stored in records if isinstance(stored.record, Claim)]
        if not claims:
            return None
        ends = [stored.seq for stored in records if isinstance(stored.record, End)]
        pattern = self._subjects.tokens_of_partition(self._subjects.partition(rid))
        last_shared = None
        async for message in self._js.proven_scan(
            self._subjects.tokens_stream, pattern, first_seq=claims[0]
        ):
            if ends and message.seq > ends[0]:
                break
            frame = _read(message.data)
            if frame is None:
                continue
            mine = [entry for entry in frame.entries if entry.rid == rid]
            if len(mine) == len(frame.entries):
                await self._js.erase_message(self._subjects.tokens_stream, message.seq)
            elif mine:
                last_shared = message.time
            if any(entry.finish and entry.epoch == claims[-1] for entry in mine):
                break
        return last_shared

    async def erase_all(self, rids: Container[str]) -> datetime.datetime | None:
        """Erases in the whole log; returns when the last shared one was stored.

        Raises BrokerError.
        """
        subjects = self._subjects
        last_shared = None
        pattern = f"{subjects.prefix}.tok.*.*"
        async for message in self._js.proven_scan(subjects.tokens_stream, pattern):
            frame = _read(message.data)
            if frame is None:
                continue
            are_mine = [entry.rid in rids for entry in frame.entries]
            if are_mine and all(are_mine):
                await self._js.erase_message(subjects.tokens_stream, message.seq)
            elif any(are_mine):
                last_shared = message.time
        return last_shared


def _read(data: bytes) -> TokenFrame | None:
    try:
        return decode_token_frame(data)
    except ProtocolError:
        return None
