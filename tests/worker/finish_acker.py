"""In place of a detokenizer: takes finished requests out of the queue, and does nothing else."""

from __future__ import annotations

import asyncio
import contextlib

from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.text_outbox import TextOutbox
from shared.broker.log_reader import LogReader
from shared.broker.named_subjects import NamedSubjects
from shared.broker.text_readers import TextReaders
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode_ownership, decode_token_frame
from shared.subjects import rid_of


class FinishAcker:
    """Reads the whole token log of a cluster, from its beginning."""

    def __init__(self, cluster: Cluster) -> None:
        subjects = cluster.subjects
        told = NamedSubjects(subjects)
        self._outbox = TextOutbox(cluster.nc, "detok-1", DetokStats(), told, TextReaders())
        self._token_prefix = f"{subjects.prefix}.tok."
        self._requests: dict[str, DecodeStatus] = {}
        self._due: list[str] = []
        self._reader = LogReader(cluster.js, subjects.tokens_stream, [">"], 1, self._on_message)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._reader.run())

    def _on_message(self, subject: str, seq: int, data: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            if not subject.startswith(self._token_prefix):
                status = self._status(rid_of(subject), seq)
                status.apply_record(seq, decode_ownership(data))
                self._maybe_ack(status)
                return
            frame = decode_token_frame(data)
            for entry in frame.entries:
                status = self._status(entry.rid, seq)
                status.apply_entry(seq, frame.worker, entry)
                self._maybe_ack(status)

    def _status(self, rid: str, seq: int) -> DecodeStatus:
        return self._requests.setdefault(rid, DecodeStatus(rid, seq))

    def _maybe_ack(self, status: DecodeStatus) -> None:
        if status.is_for_us_to_ack:
            assert status.claim is not None
            self._outbox.acknowledge(status.rid, status.claim.ack_subject)
