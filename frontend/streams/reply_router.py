"""One subscription hears the text of all requests of a frontend, and hands it to their streams."""

from __future__ import annotations

import asyncio
from collections import Counter

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from frontend.metrics import StreamMetrics
from frontend.streams.generation import Generation
from frontend.tenants.ledger import TenantLedger
from frontend.text.text_stream import TextStream
from shared.errors import ProtocolError
from shared.nats_client.prompt_client import prompt
from shared.protocol.codec import decode_text_frame
from shared.telemetry.log import get_logger
from shared.telemetry.malformed_count import MalformedCount

log = get_logger(__name__)


class ReplyRouter:
    """The generations that are read here, and their streams by rid.

    A rid has several streams while a client resumes on the frontend that it came from.
    """

    def __init__(
        self,
        nc: Client,
        subject: str,
        ledger: TenantLedger,
        malformed: MalformedCount,
        metrics: StreamMetrics,
    ) -> None:
        self._nc = nc
        self._malformed = malformed
        self._metrics = metrics
        self._ledger = ledger
        self.subject = subject
        self._streams: dict[str, list[TextStream]] = {}
        self._num_readers: Counter[str] = Counter()  # by rid: without those that look on
        self._generations: dict[Generation, None] = {}  # a set that keeps its order
        self._subscription: Subscription | None = None
        self.on_gap = asyncio.Event()  # some stream needs a replay now
        self.in_use = asyncio.Event()  # set while there are generations

    async def start(self) -> None:
        self._subscription = await self._nc.subscribe(
            self.subject, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    @property
    def generations(self) -> list[Generation]:
        return list(self._generations)

    def add(self, generation: Generation) -> None:
        self._generations[generation] = None
        self.in_use.set()
        for stream in generation.streams:
            self._streams.setdefault(stream.rid, []).append(stream)
            if generation.looks_on:
                continue
            self._num_readers[stream.rid] += 1
            if self._num_readers[stream.rid] == 1:
                self._ledger.add(stream.rid, generation.tenant, stream.reply.job_class)

    def remove(self, generation: Generation) -> None:
        if generation not in self._generations:
            return
        del self._generations[generation]
        if not self._generations:
            self.in_use.clear()
        for stream in generation.streams:
            streams = self._streams[stream.rid]
            streams.remove(stream)
            if not streams:
                del self._streams[stream.rid]
            if generation.looks_on:
                continue
            self._num_readers[stream.rid] -= 1
            if not self._num_readers[stream.rid]:
                del self._num_readers[stream.rid]
                self._ledger.remove(stream.rid)

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
        self.on_gap.set()

    @prompt
    async def _on_message(self, message: Msg) -> None:
        try:
            frame = decode_text_frame(message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.error("bad_text_frame", error=str(exc))
            return
        streams = self._streams
        now = asyncio.get_running_loop().time()
        for chunk in frame.chunks:
            for stream in streams.get(chunk.rid, ()):
                stream.receive(chunk, now)
                if stream.has_gap:
                    self._metrics.reply_gaps.inc()
                    self.on_gap.set()
