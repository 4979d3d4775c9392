"""Text that nobody has heard, and how it is said: all chunks of one turn of the loop, in one
message a reply subject, or one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import nats.errors
from nats.aio.client import Client

from detok.chunk_pieces import MAX_PIECE_BYTES, num_bytes_of, pieces_of
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.tokenizer_cache import TokenizerCache
from shared.broker.named_subjects import NamedSubjects
from shared.broker.text_readers import TextReaders
from shared.protocol.codec import encode_text_frame
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.text import TextChunk, TextFrame
from shared.telemetry.log import get_logger

_MAX_IDS_AT_ONCE = 8 * 1024
_ACK = b"+ACK"

log = get_logger(__name__)


class UnpublishedText:
    """Requests of a partition with something to say that nobody has heard: each once, in the order
    in which they got it.
    """

    def __init__(
        self, tokenizers: TokenizerCache, on_all_published: Callable[[DecodeStatus], None]
    ) -> None:
        """`on_all_published` hears of each request whose end has been said."""
        self._tokenizers = tokenizers
        self._on_all_published = on_all_published
        self._statuses: list[DecodeStatus] = []

    def __len__(self) -> int:
        return len(self._statuses)

    def add(self, status: DecodeStatus) -> None:
        if not status.is_dirty:
            status.is_dirty = True
            self._statuses.append(status)

    def take(self) -> Iterator[tuple[list[str], TextChunk]]:
        """Reply subjects and chunk of each request; who waits for its tokenizer stays."""
        statuses, self._statuses = self._statuses, []
        for status in statuses:
            if not self._has_text(status):
                self._statuses.append(status)
                continue
            status.is_dirty = False
            if status.is_finishing or (status.is_partial and status.fold.finish is not None):
                continue
            chunk = status.next_chunk()
            if chunk is not None:
                yield status.subjects, chunk
            if status.fold.finish is not None:
                status.is_finishing = True
                self._on_all_published(status)

    def _has_text(self, status: DecodeStatus) -> bool:
        """Decode what is new, if the tokenizer is there."""
        if status.bring_up_to_date(self._tokenizers):
            return True
        assert status.claim is not None
        tokenizer_hash = status.claim.tokenizer_hash
        if not self._tokenizers.is_unusable(tokenizer_hash):
            return False
        message = f"tokenizer {tokenizer_hash} cannot be loaded"
        status.fail(Finish(FinishReason.ERROR, message=message))
        return True


class ChunkSource(Protocol):
    """A partition: gives what its requests have to say."""

    def collect(self) -> Iterator[tuple[list[str], TextChunk]]:
        """Reply subjects and chunk, for each request that has something new."""


class TextOutbox:
    """Nothing is held back for time: messages already delivered are folded, then all is sent."""

    def __init__(
        self,
        nc: Client,
        detok_id: str,
        stats: DetokStats,
        named: NamedSubjects,
        readers: TextReaders,
    ) -> None:
        """`readers` are those of this process."""
        self._nc = nc
        self._named = named
        self.readers = readers
        self._detok_id = detok_id
        self._stats = stats
        self._sources: dict[ChunkSource, None] = {}
        self._notices: list[tuple[str, bytes]] = []
        self._wake = asyncio.Event()

    def mark(self, source: ChunkSource) -> None:
        """This source has something new."""
        if source not in self._sources:
            self._sources[source] = None
            self._wake.set()

    def post(self, subject: str, payload: bytes) -> None:
        """Send any other message with the next flush."""
        self._notices.append((subject, payload))
        self._wake.set()

    def acknowledge(self, rid: str, subject: str) -> None:
        """The request is over: it leaves the queue with the next flush."""
        if self._named.is_ack_subject(subject):
            self._stats.acks += 1
            self.post(subject, _ACK)
        else:
            log.error("no_ack_subject", rid=rid, subject=subject[:80])

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send what is there."""
        sources, self._sources = self._sources, {}
        by_subject: dict[str, list[TextChunk]] = {}
        num_ids = 0
        for source in sources:
            for subjects, chunk in source.collect():
                for subject in subjects:
                    by_subject.setdefault(subject, []).append(chunk)
                num_ids += len(chunk.token_ids)
                if num_ids > _MAX_IDS_AT_ONCE:  # only after a takeover: leases must be renewed
                    num_ids = 0
                    await asyncio.sleep(0)
        for subject, chunks in by_subject.items():
            if self.readers.deliver(subject, chunks):
                self._stats.chunks += len(chunks)
            elif self._named.is_text_subject(subject):
                await self._send_chunks(subject, chunks)
            else:
                log.warning("no_text_subject", subject=subject[:80])
        notices, self._notices = self._notices, []
        for subject, payload in notices:
            await self._publish(subject, payload)

    async def _send_chunks(self, subject: str, chunks: list[TextChunk]) -> None:
        for batch in _batches(chunks):
            self._stats.chunks += len(batch)
            self._stats.text_frames += 1
            await self._publish(subject, encode_text_frame(TextFrame(self._detok_id, batch)))

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self._nc.publish(subject, payload)
        except (nats.errors.Error, OSError) as exc:
            # Text is not lost by this: it is in the log, and who misses it asks for a replay.
            log.warning("publish_failed", subject=subject, error=repr(exc))


def _batches(chunks: list[TextChunk]) -> Iterator[list[TextChunk]]:
    """Chunks in messages that the broker takes."""
    batch: list[TextChunk] = []
    num_bytes = 0
    for whole in chunks:
        for chunk in pieces_of(whole):
            chunk_bytes = num_bytes_of(chunk)
            if batch and num_bytes + chunk_bytes > MAX_PIECE_BYTES:
                yield batch
                batch, num_bytes = [], 0
            batch.append(chunk)
            num_bytes += chunk_bytes
    if batch:
        yield batch
