"""Reads token frames backwards from some place in the log, for requests whose past is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from shared.broker.jetstream import JetStream, StoredMessage
from shared.errors import BrokerUnavailable, ProtocolError
from shared.protocol.codec import decode_token_frame
from shared.subjects import Subjects
from shared.telemetry.log import get_logger
from shared.telemetry.malformed_count import MalformedCount
from shared.token_log.request_past import RequestPast, StoredFrame, Wanted

_FIRST_MESSAGES = 64  # read at once; then as many again as all before
_MAX_GROWTH = 4  # of the next window, in sequences
_MAX_BATCH = 256
_RETRY_S = 0.05

log = get_logger(__name__)


@dataclass(slots=True)
class _Walk:
    """How far the frames of one worker have been read, and how dense they lie."""

    last_seq: int  # of all its frames, when the reading began; 0: it has none
    position: int = 0  # everything from here to where the walk began has been read
    span: int = _FIRST_MESSAGES  # sequences of the next window
    num_read: int = 0
    density: float = 1.0  # frames a sequence

    def start_at(self, end: int) -> None:
        if end != self.position:  # it goes on elsewhere
            self.span, self.num_read, self.density = _FIRST_MESSAGES, 0, 1.0

    def note(self, start: int, span: int, num_messages: int) -> None:
        self.position = start
        self.num_read += num_messages
        self.density = num_messages / span
        wanted = max(_FIRST_MESSAGES, self.num_read) * span // max(1, num_messages)
        self.span = max(1, min(_MAX_GROWTH * span, wanted))


class PastReader:
    """Reads one partition. Each window is about as large as all those before it, so that at most
    twice as much is read as is needed.

    No window is believed before its end has come out: batches are answered by any replica, and one
    that lags behind does not know. What the end is, the leader says.
    """

    def __init__(
        self, js: JetStream, subjects: Subjects, partition: int, malformed: MalformedCount
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._partition = partition
        self._malformed = malformed
        self._walks: dict[str, _Walk] = {}
        self.num_messages = 0  # delivered to us, for tests

    async def last_seq(self, worker: str) -> int:
        """The last sequence of a worker's frames; 0 when there are none.

        Raises BrokerUnavailable.
        """
        subject = self._subjects.tokens(self._partition, worker)
        last = await self._js.get_last(self._subjects.tokens_stream, subject)
        return 0 if last is None else last.seq

    async def read(self, pasts: Sequence[RequestPast]) -> None:
        """Until none of them wants more; who wants the same frames shares them.

        The caller bounds the time: while the broker does not answer, it is asked again.
        """
        while True:
            wanting = [(wants, past) for past in pasts if (wants := past.wants) is not None]
            if not wanting:
                return
            newest = max((wants for wants, _ in wanting), key=lambda wants: wants.end)
            group = [(wants, past) for wants, past in wanting if wants.worker == newest.worker]
            start = min(wants.start for wants, _ in group)
            read_from, frames = await self._window(Wanted(newest.worker, start, newest.end))
            for wants, past in group:
                if wants.end > read_from:
                    past.add(frames, read_from)

    async def _window(self, wanted: Wanted) -> tuple[int, list[StoredFrame]]:
        """Frames from some place in `wanted` to its end, and that place."""
        walk = await self._walk(wanted.worker)
        end = min(wanted.end, walk.last_seq + 1)
        if end <= wanted.start:
            return wanted.start, []
        walk.start_at(end)
        start = max(wanted.start, end - walk.span)
        messages = await self._messages(wanted.worker, walk, start, end)
        walk.note(start, end - start, len(messages))
        return start, [frame for message in messages if (frame := self._frame(message))]

    async def _walk(self, worker: str) -> _Walk:
        while worker not in self._walks:
            try:
                self._walks[worker] = _Walk(await self.last_seq(worker))
            except BrokerUnavailable as exc:
                await self._wait(worker, exc)
        return self._walks[worker]

    async def _messages(
        self, worker: str, walk: _Walk, start: int, end: int
    ) -> list[StoredMessage]:
        """All messages at [start, end)."""
        stream, subject = (
            self._subjects.tokens_stream,
            self._subjects.tokens(self._partition, worker),
        )
        found: list[StoredMessage] = []
        seq = start
        while seq < end:
            num_expected = int(walk.density * (end - seq)) + 1
            batch_len = min(_MAX_BATCH, num_expected)
            try:
                batch = await self._js.direct_batch(stream, subject, seq, batch_len)
            except BrokerUnavailable as exc:
                await self._wait(worker, exc)
                continue
            self.num_messages += len(batch)
            found += [message for message in batch if message.seq < end]
            if batch:
                seq = batch[-1].seq + 1
            if len(batch) < batch_len and seq <= min(end - 1, walk.last_seq):
                await self._wait(worker, None)
        return found

    async def _wait(self, worker: str, error: BrokerUnavailable | None) -> None:
        why = "a replica lags behind" if error is None else str(error)
        log.info("past_read_waits", partition=self._partition, worker=worker, why=why)
        await asyncio.sleep(_RETRY_S)

    def _frame(self, message: StoredMessage) -> StoredFrame | None:
        try:
            return StoredFrame(message.seq, decode_token_frame(message.data))
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.warning("log_message_unreadable", subject=message.subject, seq=message.seq)
            return None
