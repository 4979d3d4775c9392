"""Asks for what is missing: after a gap at once, after silence from time to time."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from frontend.metrics import StreamMetrics
from frontend.streams.alarms import TICK_S
from frontend.streams.detok_client import DetokClient
from frontend.streams.generation import Generation, Interrupt
from frontend.streams.reply_router import SILENCE_S, Reading, ReplyRouter
from frontend.text.text_stream import TextStream
from shared.broker.stream_info import has_quorum
from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.event_wait import wait_event
from shared.protocol.text import Held, ReplayReply, ReplayStatus
from shared.telemetry.log import get_logger

WHOLE_SILENCE_S = 3.0  # of one whose answer comes in one piece
MAX_BACKOFF_S = 10.0  # of one that is queued, and while no detokenizer answers
_GAP_RETRY_S = 0.2
_FAILED_RETRY_S = 0.25  # the partition is just changing hands; doubled while nobody answers
_LOST_AFTER = 2  # looks in a row that found nothing, a second apart or more
_MAX_TOGETHER = 512
_MAX_ASKING = 64  # a group may have thousands of requests, each of which costs several reads

log = get_logger(__name__)


class LostRequests:
    """Tells requests that NATS has lost from those that wait.

    What was accepted is in the queue, in the log, or among the results, whatever dies. After a
    power loss, or on a store that was put back to an older state, it may be in none of them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def is_missing(self, rid: str) -> bool:
        """Whether a quorum says that none of them has it. Raises BrokerError."""
        subjects = self._cluster.subjects
        for stream, subject in (
            (subjects.requests_stream, subjects.request_by_rid(rid)),
            (subjects.tokens_stream, subjects.ownership(rid)),
            (subjects.results_stream, subjects.done(rid)),
        ):
            if await self._may_have(stream, subject):
                return False
        return True

    async def _may_have(self, stream: str, subject: str) -> bool:
        """It asks without the payload: that of a queued request is its prompt."""
        info = await self._cluster.js.api(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
        return bool(info["state"].get("subjects")) or not has_quorum(info)


class Replayer:
    """Watches all streams that somebody reads."""

    def __init__(
        self, router: ReplyRouter, detok: DetokClient, lost: LostRequests, metrics: StreamMetrics
    ) -> None:
        self._router = router
        self._detok = detok
        self._lost = lost
        self._metrics = metrics
        self._asking = asyncio.Semaphore(_MAX_ASKING)
        self._num_reconnects = 0

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._router.in_use.wait()
                await wait_event(self._router.on_gap, TICK_S)
                self._router.on_gap.clear()
                now = asyncio.get_running_loop().time()
                for readings in self._in_company(self._due(now)):
                    tasks.create_task(self._ask_all(readings))

    def _due(self, now: float) -> Iterator[Reading]:
        for reading in self._router.take_to_ask(now):
            stream = reading.stream
            if stream.is_asking or not reading.generation.is_watched:
                continue
            if now >= (at := due_at(stream)):
                stream.is_asking = True
                yield reading
            else:
                self._router.ask(reading, at)

    def _in_company(self, due: Iterable[Reading]) -> Iterator[list[Reading]]:
        """Those of which there is likely nothing new are asked for together."""
        quiet: defaultdict[int, list[Reading]] = defaultdict(list)  # by partition
        for reading in due:
            if not is_likely_quiet(reading.stream):
                yield [reading]
                continue
            company = quiet[self._detok.partition(reading.stream.rid)]
            company.append(reading)
            if len(company) == _MAX_TOGETHER:
                yield company.copy()
                company.clear()
        yield from filter(None, quiet.values())

    async def on_reconnect(self) -> None:
        """NATS is back: whoever has heard nothing meanwhile is asked for now, however often asking
        has failed.
        """
        self._num_reconnects += 1
        for generation in self._router.generations:
            for stream in generation.streams:
                stream.asked_at = float("-inf")
                self._router.ask(Reading(stream, generation))
        self._router.on_gap.set()

    async def _ask_all(self, readings: list[Reading]) -> None:
        """Asks for all of one partition. What the answer to the first leaves open is asked for
        alone.
        """
        first, *others = readings
        num_reconnects = self._num_reconnects
        reply = await self._ask(first, [reading.stream.held for reading in others])
        is_told = reply is not None and reply.changed is not None  # earlier builds tell nothing
        changed = set(reply.changed or ()) if reply is not None else set()
        to_ask = []
        for reading in others:
            stream = reading.stream
            if reply is None:
                stream.num_failed_asks += 1
            elif is_told and stream.rid not in changed:
                _note_running(stream)
            else:
                to_ask.append(self._ask(reading))
                continue
            self._note_asked(reading, num_reconnects)
        await asyncio.gather(*to_ask)

    async def _ask(self, reading: Reading, others: Sequence[Held] = ()) -> ReplayReply | None:
        """None: nobody has answered."""
        stream, generation = reading
        # Token ids of a chunk need not begin where its text does: a stream that keeps them asks
        # for everything.
        offset = 0 if stream.keeps_token_ids else stream.have
        follows = generation.is_resumed or not stream.reply.is_whole
        num_reconnects = self._num_reconnects
        reply = None
        try:
            async with self._asking:
                reply = await self._detok.replay(stream.rid, offset, follows=follows, others=others)
        except (BrokerError, ProtocolError) as exc:
            log.debug("replay_failed", rid=stream.rid, error=str(exc))
            self._metrics.replays.labels("failed").inc()
            stream.num_failed_asks += 1
        else:
            self._metrics.replays.labels(reply.status.value).inc()
            stream.num_failed_asks = 0
            if reply.status is ReplayStatus.QUEUED:
                _back_off(stream)
                await self._look_whether_lost(stream, generation)
            else:
                _note_running(stream)
                if reply.chunk is not None:
                    stream.receive(reply.chunk, asyncio.get_running_loop().time())
        finally:
            self._note_asked(reading, num_reconnects)
        return reply

    def _note_asked(self, reading: Reading, num_reconnects: int) -> None:
        """`num_reconnects`: when it was asked for. Nothing said on a connection that is gone counts
        as asked now.
        """
        stream = reading.stream
        is_stale = num_reconnects != self._num_reconnects
        stream.asked_at = float("-inf") if is_stale else asyncio.get_running_loop().time()
        stream.is_asking = False
        self._router.ask(reading, due_at(stream))

    async def _look_whether_lost(self, stream: TextStream, generation: Generation) -> None:
        if not generation.is_stored:
            return
        try:
            async with self._asking:
                is_missing = await self._lost.is_missing(stream.rid)
        except BrokerError as exc:
            log.debug("not_looked_for", rid=stream.rid, error=str(exc))
            return
        stream.num_missing = stream.num_missing + 1 if is_missing else 0
        if stream.num_missing >= _LOST_AFTER and stream.finish is None:
            log.error("request_lost", rid=stream.rid)
            generation.cut(Interrupt.RECORDS_LOST)


def is_likely_quiet(stream: TextStream) -> bool:
    """Whether it is asked for because of its silence alone, and its text tells all that it has."""
    return (
        stream.have > 0
        and not stream.num_failed_asks
        and not stream.has_gap
        and not stream.keeps_token_ids
        and not stream.reply.is_whole
    )


def _note_running(stream: TextStream) -> None:
    stream.backoff_s, stream.num_missing, stream.num_failed_asks = _silence_s(stream), 0, 0


def due_at(stream: TextStream) -> float:
    """When it is to be asked for next, if nothing is heard of it until then; inf: never."""
    if stream.finish is not None:
        return float("inf")
    if stream.has_gap:
        return stream.asked_at + _GAP_RETRY_S
    if stream.last_heard_at > stream.asked_at:
        stream.backoff_s, stream.num_failed_asks = _silence_s(stream), 0
        return stream.last_heard_at + _silence_s(stream)
    return stream.asked_at + _pause_s(stream)


def _silence_s(stream: TextStream) -> float:
    return WHOLE_SILENCE_S if stream.reply.is_whole else SILENCE_S


def _pause_s(stream: TextStream) -> float:
    """Seconds before it is asked for again."""
    if stream.num_failed_asks == 0:
        return stream.backoff_s
    return min(MAX_BACKOFF_S, _FAILED_RETRY_S * 2.0 ** min(stream.num_failed_asks - 1, 10))


def _back_off(stream: TextStream) -> None:
    stream.backoff_s = min(MAX_BACKOFF_S, stream.backoff_s * random.uniform(1.5, 2.0))
