"""One subscription hears the text of all requests of a frontend, and hands it to their streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from frontend.metrics import StreamMetrics
from frontend.streams.alarms import Alarms
from frontend.streams.generation import Generation
from frontend.tenants.ledger import TenantLedger
from frontend.text.text_stream import TextStream
from shared.broker.text_readers import TextReaders
from shared.errors import ProtocolError
from shared.nats_client.prompt_client import prompt
from shared.protocol.codec import decode_text_frame
from shared.protocol.text import TextChunk
from shared.telemetry.log import get_logger
from shared.telemetry.malformed_count import MalformedCount

log = get_logger(__name__)


SILENCE_S = 1.0  # of a running request, before it is asked for


class Reading(NamedTuple):
    """One stream of a generation."""

    stream: TextStream
    generation: Generation


class ReplyRouter:
    """The generations that are read here, and their streams by rid.

    A rid has several streams while a client resumes on the frontend that it came from. What looks
    after them sets alarms here, and need not look at all of them.
    """

    def __init__(
        self,
        nc: Client,
        subject: str,
        readers: TextReaders,
        ledger: TenantLedger,
        malformed: MalformedCount,
        metrics: StreamMetrics,
    ) -> None:
        """`readers` are those of this process."""
        self._nc = nc
        self._readers = readers
        self._malformed = malformed
        self._metrics = metrics
        self._ledger = ledger
        self.subject = subject
        self._readings: dict[str, list[Reading]] = {}
        self._num_readers: Counter[str] = Counter()  # by rid: without those that look on
        self._generations: dict[Generation, None] = {}  # a set that keeps its order
        self._num_of_pool: Counter[str] = Counter()
        self._subscription: Subscription | None = None
        self.to_look_after: Alarms[Generation] = Alarms()
        self._to_ask: Alarms[Reading] = Alarms()
        self.on_gap = asyncio.Event()  # some stream needs a replay now
        self.in_use = asyncio.Event()  # set while there are generations

    async def start(self) -> None:
        self._readers.add(self.subject, self.receive)
        self._subscription = await self._nc.subscribe(
            self.subject, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    @property
    def generations(self) -> list[Generation]:
        return list(self._generations)

    @property
    def pools(self) -> AbstractSet[str]:
        """Those of the generations."""
        return self._num_of_pool.keys()

    def add(self, generation: Generation) -> None:
        self._generations[generation] = None
        self._num_of_pool[generation.pool] += 1
        self.in_use.set()
        now = asyncio.get_running_loop().time()
        self.to_look_after.set(generation, now)
        for stream in generation.streams:
            reading = Reading(stream, generation)
            self._readings.setdefault(stream.rid, []).append(reading)
            self.ask(reading, now + SILENCE_S)
            if generation.looks_on:
                continue
            self._num_readers[stream.rid] += 1
            if self._num_readers[stream.rid] == 1:
                self._ledger.add(stream.rid, generation.tenant, stream.reply.job_class)

    def remove(self, generation: Generation) -> None:
        if generation not in self._generations:
            return
        del self._generations[generation]
        self._num_of_pool[generation.pool] -= 1
        if not self._num_of_pool[generation.pool]:
            del self._num_of_pool[generation.pool]
        if not self._generations:
            self.in_use.clear()
        self.to_look_after.drop(generation)
        for stream in generation.streams:
            reading = Reading(stream, generation)
            self._to_ask.drop(reading)
            readings = self._readings[stream.rid]
            readings.remove(reading)
            if not readings:
                del self._readings[stream.rid]
            if generation.looks_on:
                continue
            self._num_readers[stream.rid] -= 1
            if not self._num_readers[stream.rid]:
                del self._num_readers[stream.rid]
                self._ledger.remove(stream.rid)

    def readers(self, rid: str) -> list[Generation]:
        """The generations that have a stream of this request."""
        return [reading.generation for reading in self._readings.get(rid, ())]

    def ask(self, reading: Reading, at: float = 0.0) -> None:
        """Have it looked at then, by default at the next look of all, whether a replay of the
        stream is to be asked for.
        """
        if reading.generation in self._generations:
            reading.stream.ask_at = at
            self._to_ask.set(reading, at)

    def take_to_ask(self, now: float) -> list[Reading]:
        """The readings to be looked at."""
        return self._to_ask.take_due(now)

    def find(self, group_id: str) -> list[Generation]:
        return [generation for generation in self._generations if generation.group_id == group_id]

    def named(self, client_id: str, owner: str) -> list[Generation]:
        """The generations of one client, by what it calls its requests, or a prompt of one: one
        of each group.
        """
        groups = {
            generation.group_id: generation
            for generation in self._generations
            if generation.reply.owner == owner and generation.is_called(client_id)
        }
        return list(groups.values())

    def ask_for(self, generation: Generation) -> None:
        """Have what it misses replayed at once: others have heard it before."""
        for stream in generation.streams:
            if not stream.have:
                stream.asked_at -= stream.backoff_s
                self.ask(Reading(stream, generation))
        self.on_gap.set()

    @prompt
    async def _on_message(self, message: Msg) -> None:
        """Takes text from a detokenizer in another process."""
        try:
            frame = decode_text_frame(message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.error("bad_text_frame", error=str(exc))
            return
        self.receive(frame.chunks)

    def receive(self, chunks: Sequence[TextChunk]) -> None:
        """Hand text to the streams that it is for."""
        readings = self._readings
        now = asyncio.get_running_loop().time()
        latest_ask_at = now + SILENCE_S
        for chunk in chunks:
            for reading in readings.get(chunk.rid, ()):
                stream = reading.stream
                stream.receive(chunk, now)
                if stream.has_gap:
                    self._metrics.reply_gaps.inc()
                    self.ask(reading)
                    self.on_gap.set()
                elif stream.ask_at > latest_ask_at:  # it had been silent for long
                    self.ask(reading, latest_ask_at)
