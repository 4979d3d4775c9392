"""Takes requests out of the queue that were acknowledged long ago, and are in it again.

A broker whose disk was full keeps an acknowledgement, and may lose the removal that belongs to it:
started again it holds the request, and delivers it to nobody. Such leftovers would count against
the queue's limits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib

from shared.broker.jetstream import StoredMessage
from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.event_wait import wait_event
from shared.protocol.codec import decode
from shared.protocol.log_records import End
from shared.protocol.request import GenerateRequest
from shared.subjects import LANES, Lane
from shared.telemetry.log import get_logger

_AFTER_RECONNECT_S = 5.0  # results that are just being written come first
_AGAIN_S = 300.0

log = get_logger(__name__)


class LeftoverSweeper:
    """Looks after the start, after each reconnect, and now and then.

    What is at or below the consumer's acknowledgement floor was acknowledged. It is removed only if
    its request is known to be over, or is older than the log is kept.
    """

    def __init__(self, cluster: Cluster, pool: str, retention_s: float) -> None:
        self._cluster = cluster
        self._pool = pool
        self._retention_s = retention_s
        self._reconnected = asyncio.Event()

    def look_soon(self) -> None:
        """The broker may have been started again."""
        self._reconnected.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._reconnected.clear()
            await asyncio.sleep(_AFTER_RECONNECT_S)
            with contextlib.suppress(BrokerError):
                await self.sweep()
            await wait_event(self._reconnected, _AGAIN_S)

    async def sweep(self) -> int:
        """How many were removed. Raises BrokerError."""
        return sum([await self._sweep_lane(lane) for lane in LANES])

    async def _sweep_lane(self, lane: Lane) -> int:
        js, subjects = self._cluster.js, self._cluster.subjects
        stream, consumer = subjects.requests_stream, subjects.consumer(self._pool, lane.token)
        floor = (await js.api(f"CONSUMER.INFO.{stream}.{consumer}"))["ack_floor"]["stream_seq"]
        num_removed = seq = 0
        while message := await self._next_below(floor, seq + 1, lane):
            seq = message.seq
            if await self._is_over(message):
                await js.delete_message(stream, seq)
                num_removed += 1
            else:
                log.warning("acknowledged_request_not_over", seq=seq, subject=message.subject)
        if num_removed:
            log.info("leftovers_removed", lane=lane.token, num_requests=num_removed)
        return num_removed

    async def _next_below(self, floor: int, seq: int, lane: Lane) -> StoredMessage | None:
        subjects = self._cluster.subjects
        if seq > floor:
            return None
        subject = subjects.requests(self._pool, lane.token)
        message = await self._cluster.js.get_next(subjects.requests_stream, subject, seq)
        return message if message is not None and message.seq <= floor else None

    async def _is_over(self, message: StoredMessage) -> bool:
        js, subjects = self._cluster.js, self._cluster.subjects
        clock = await js.clock(subjects.requests_stream)
        if clock.age_s(message.time) > self._retention_s:
            return True
        try:
            rid = decode(GenerateRequest, message.data).rid
        except ProtocolError:
            return False
        if await js.get_last(subjects.results_stream, subjects.done(rid)) is not None:
            return True
        last = await self._cluster.ownership.last(rid)
        return last is not None and isinstance(last.record, End)
