"""Writes token frames to the log: pipelined, confirmed in order, resent until they are stored.

A frame is confirmed when its predecessor is confirmed at q' and an acknowledgement q > q' for it
has arrived: only then do the stored copies stand in the order in which they were written.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.broker.jetstream import parse_pub_ack
from shared.event_wait import beat_s
from shared.liveness.log_watch import LogMark
from shared.nats_client.connection_end import end_subscription
from shared.nats_client.prompt_client import prompt
from shared.protocol.codec import encode_token_frame
from shared.protocol.log_records import TokenEntry, TokenFrame
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

MAX_ENTRY_TOKENS = 16_384  # more are cut into several entries
_TOKEN_BYTES = 5  # at most
_MAX_FRAME_TOKENS = 65_536  # or as many bytes of other results: far below max_payload
_ENTRY_TOKENS = 40  # what an entry takes in a frame besides, with its id and its cost
_MESSAGE_ROOM = 8192  # for all that the messages on its way hold besides such a result
_RESEND_AFTER_S = 1.0
_TICK_S = 0.25

log = get_logger(__name__)

OnFinishConfirmed = Callable[[TokenEntry, int], None]


@dataclass(slots=True)
class _SentFrame:
    """A frame that is not confirmed yet."""

    number: int
    payload: bytes
    finishing: list[TokenEntry]  # entries that carry a finish
    first_sent_at: float
    sent_at: float
    ack_seqs: list[int] = field(default_factory=list)  # of every stored copy, as they come


class PartitionWriter:
    """The frames of this worker in one partition.

    At most `window` frames are unconfirmed; while the window is full, entries wait and those of
    the same request merge, so that a slow broker gets fewer and larger frames, never a backlog.
    """

    def __init__(self, worker_id: str, window: int, on_finish_confirmed: OnFinishConfirmed) -> None:
        self._worker_id = worker_id
        self._window = window
        self._on_finish_confirmed = on_finish_confirmed
        self._pending: list[TokenEntry] = []
        self._pending_idx: dict[tuple[str, int], int] = {}  # last entry of a request and epoch
        self.num_pending_tokens = 0  # a finish counts as one at least, by its size
        self._sent: deque[_SentFrame] = deque()
        self._by_number: dict[int, _SentFrame] = {}
        self._last_number = 0
        self.confirmed_seq = 0
        self.confirmed_payload: bytes | None = None  # of the frame there
        self.num_resent = 0

    @property
    def is_flushed(self) -> bool:
        return not self._pending and not self._sent

    def has_pending(self, rid: str) -> bool:
        """Whether some of a request is in no frame yet."""
        return any(pending == rid for pending, _ in self._pending_idx)

    @property
    def unconfirmed_since(self) -> float | None:
        """When the first unconfirmed frame was sent; None when all are confirmed."""
        return self._sent[0].first_sent_at if self._sent else None

    def append(self, entry: TokenEntry) -> None:
        """Queue an entry; contiguous ones of the same request and epoch become one."""
        self.num_pending_tokens += _weight(entry)
        key = (entry.rid, entry.epoch)
        idx = self._pending_idx.get(key)
        if idx is not None:
            last = self._pending[idx]
            end = last.position + len(last.token_ids)
            if end == entry.position and _fit_together(last, entry):
                self._pending[idx] = TokenEntry(
                    last.rid,
                    last.epoch,
                    last.position,
                    last.token_ids + entry.token_ids,
                    entry.finish,
                    last.logprobs + entry.logprobs,
                    last.prompt_logprobs,
                    last.restates,
                    entry.cost or last.cost,
                )
                return
        self._pending_idx[key] = len(self._pending)
        self._pending.append(entry)

    def next_frame(self, now: float) -> _SentFrame | None:
        """Take the waiting entries as one frame to publish; None when the window is full."""
        if not self._pending or len(self._sent) >= self._window:
            return None
        entries = self._take_entries()
        self._last_number += 1
        payload = encode_token_frame(
            TokenFrame(self._worker_id, self._last_number, entries, self.confirmed_seq)
        )
        finishing = [entry for entry in entries if entry.finish is not None]
        frame = _SentFrame(self._last_number, payload, finishing, now, now)
        self._sent.append(frame)
        self._by_number[frame.number] = frame
        return frame

    def _take_entries(self) -> list[TokenEntry]:
        num_tokens = self.num_pending_tokens + _ENTRY_TOKENS * len(self._pending)
        count = self._num_fitting() if num_tokens > _MAX_FRAME_TOKENS else len(self._pending)
        entries, self._pending = self._pending[:count], self._pending[count:]
        self._pending_idx = {
            (entry.rid, entry.epoch): idx for idx, entry in enumerate(self._pending)
        }
        self.num_pending_tokens = sum(map(_weight, self._pending))
        return entries

    def _num_fitting(self) -> int:
        """How many of the waiting entries one frame has room for: at least the first."""
        num_tokens = 0
        for count, entry in enumerate(self._pending):
            num_tokens += _ENTRY_TOKENS + _weight(entry)
            if num_tokens > _MAX_FRAME_TOKENS and count:
                return count
        return len(self._pending)

    def on_ack(self, number: int, seq: int) -> None:
        """A copy of the frame is stored at `seq`."""
        frame = self._by_number.get(number)
        if frame is None:
            return
        frame.ack_seqs.append(seq)
        while self._sent:
            head = self._sent[0]
            later = [seq for seq in head.ack_seqs if seq > self.confirmed_seq]
            if not later:
                return
            self.confirmed_seq, self.confirmed_payload = min(later), head.payload
            self._sent.popleft()
            del self._by_number[head.number]
            for entry in head.finishing:
                self._on_finish_confirmed(entry, self.confirmed_seq)

    def frames_to_resend(self, now: float, *, all_of_them: bool) -> list[_SentFrame]:
        """Everything from the first unconfirmed frame on, once that is overdue."""
        if not self._sent:
            return []
        if not all_of_them and now - self._sent[0].sent_at < _RESEND_AFTER_S:
            return []
        for frame in self._sent:
            frame.sent_at = now
        self.num_resent += len(self._sent)
        return list(self._sent)


class TokenLog:
    """All partitions of the log as one worker writes them.

    `append` never waits: the engine does not wait for the broker. `is_overfull` says that the
    engine must pause, `stalled_s` for how long nothing has been confirmed.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        worker_id: str,
        on_finish_confirmed: OnFinishConfirmed,
        *,
        window: int = 8,
        max_stall_s: float,
        max_pending_tokens: int = 262_144,
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._worker_id = worker_id
        self._max_stall_s = max_stall_s
        self._max_pending_tokens = max_pending_tokens
        self._inbox = nc.new_inbox()
        self._partitions = [
            PartitionWriter(worker_id, window, on_finish_confirmed)
            for _ in range(subjects.num_partitions)
        ]
        self._wake = asyncio.Event()
        self._is_sent = asyncio.Event()  # something, that may not be confirmed yet
        self._resend_all = False

    def append(self, entry: TokenEntry) -> None:
        """Queue an entry for the next frame of its partition; `flush` sends it."""
        writer = self._partitions[self._subjects.partition(entry.rid)]
        for part in parts_of(entry):
            writer.append(part)

    def flush(self) -> None:
        """Send what is queued as soon as the loop gets to it."""
        self._wake.set()

    def resend(self) -> None:
        """After a reconnect: un-acknowledged frames may have been lost with the connection."""
        self._resend_all = True
        self._wake.set()

    @property
    def max_result_bytes(self) -> int:
        """What a message has room for, beside all else that it holds."""
        return self._nc.max_payload - _MESSAGE_ROOM

    @property
    def is_flushed(self) -> bool:
        return all(partition.is_flushed for partition in self._partitions)

    @property
    def is_overfull(self) -> bool:
        num_tokens = 0
        for partition in self._partitions:
            num_tokens += partition.num_pending_tokens
        return num_tokens > self._max_pending_tokens

    @property
    def last_confirmed(self) -> LogMark:
        """The frame of ours that is known to stand highest in the log."""
        last = max(self._partitions, key=lambda partition: partition.confirmed_seq)
        return LogMark(last.confirmed_seq, last.confirmed_payload)

    @property
    def num_resent(self) -> int:
        return sum(partition.num_resent for partition in self._partitions)

    @property
    def stalled_s(self) -> float:
        moments = [partition.unconfirmed_since for partition in self._partitions]
        since = min((moment for moment in moments if moment is not None), default=None)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_stalled(self) -> bool:
        """Whether the log does not take what is made, for so long that nothing may be kept."""
        return self.stalled_s > self._max_stall_s

    async def wait_flushed(self, timeout_s: float) -> bool:
        """Wait until everything appended so far is confirmed; False when it took too long."""
        self.flush()
        deadline = time.monotonic() + timeout_s
        while not self.is_flushed:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    async def wait_sent(self, rid: str, timeout_s: float) -> bool:
        """Wait until what was appended of a request is on its way, before all that is published
        next; False when it took too long.
        """
        self.flush()
        writer = self._partitions[self._subjects.partition(rid)]
        deadline = time.monotonic() + timeout_s
        while writer.has_pending(rid):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def run(self) -> None:
        """Publish and resend until cancelled."""
        subscription = await self._nc.subscribe(f"{self._inbox}.*.*", cb=self._on_ack)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    try:
                        await self._send()
                    except NatsError as exc:  # what was not sent is overdue soon, and sent again
                        log.warning("frames_not_sent", error=repr(exc))
        finally:
            await end_subscription(subscription)

    async def _tick(self) -> None:
        """Looks after overdue frames: the hot path needs no timer of its own."""
        while True:
            await self._is_sent.wait()
            await asyncio.sleep(beat_s(_TICK_S))
            if self.is_flushed:
                self._is_sent.clear()
            else:
                self._wake.set()

    async def _send(self) -> None:
        self._is_sent.set()
        now = time.monotonic()
        resend_all, self._resend_all = self._resend_all, False
        for partition, writer in enumerate(self._partitions):
            for overdue in writer.frames_to_resend(now, all_of_them=resend_all):
                await self._publish(partition, overdue)
            while (frame := writer.next_frame(now)) is not None:
                await self._publish(partition, frame)

    async def _publish(self, partition: int, frame: _SentFrame) -> None:
        await self._nc.publish(
            self._subjects.tokens(partition, self._worker_id),
            frame.payload,
            reply=f"{self._inbox}.{partition}.{frame.number}",
        )

    @prompt
    async def _on_ack(self, message: Msg) -> None:
        _, partition, number = message.subject.rsplit(".", 2)
        ack = parse_pub_ack(message.data)
        if ack.error is not None or ack.seq == 0:
            log.warning("frame_refused", error=ack.error and ack.error.description)
            return  # it stays unconfirmed and is sent again
        writer = self._partitions[int(partition)]
        writer.on_ack(int(number), ack.seq)
        if writer.num_pending_tokens:
            self._wake.set()


def parts_of(whole: TokenEntry) -> list[TokenEntry]:
    """Entries that a frame has room for; a finish rides in the last one."""
    num_tokens = len(whole.token_ids)
    if num_tokens <= MAX_ENTRY_TOKENS and not whole.logprobs:
        return [whole]
    record_bytes = len(whole.logprobs) // (num_tokens or 1)
    size = min(MAX_ENTRY_TOKENS, _MAX_FRAME_TOKENS * _TOKEN_BYTES // (_TOKEN_BYTES + record_bytes))
    return [
        TokenEntry(
            whole.rid,
            whole.epoch,
            whole.position + start,
            whole.token_ids[start : start + size],
            whole.finish if start + size >= num_tokens else None,
            whole.logprobs[start * record_bytes : (start + size) * record_bytes],
            b"" if start else whole.prompt_logprobs,
            None if start else whole.restates,
            whole.cost if start + size >= num_tokens else None,
        )
        for start in range(0, num_tokens, size)
    ]


def _fit_together(one: TokenEntry, other: TokenEntry) -> bool:
    if len(one.token_ids) >= MAX_ENTRY_TOKENS:
        return False
    return _weight(one) + _weight(other) <= _MAX_FRAME_TOKENS


def _weight(entry: TokenEntry) -> int:
    """What it takes in a frame, in tokens."""
    weight = len(entry.token_ids)
    if entry.logprobs or entry.prompt_logprobs:
        weight += (len(entry.logprobs) + len(entry.prompt_logprobs)) // _TOKEN_BYTES
    if entry.finish is not None:
        weight += 1 + entry.finish.num_result_bytes // _TOKEN_BYTES
    return weight
