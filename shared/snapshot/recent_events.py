"""What happened to the pools in the last minutes."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Mapping

from shared.broker.jetstream import StoredMessage
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.protocol.role_cards import PoolEvent
from shared.telemetry.log import get_logger

KEPT_S = 330.0  # a timeline of five minutes, and how its first second came about
_MAX_EVENTS = 1000

log = get_logger(__name__)


class RecentEvents:
    """Reads on where it has stopped; after a long pause only what is recent."""

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._stream = cluster.subjects.events_stream
        self._subject = cluster.subjects.event("*")
        self._events: OrderedDict[int, tuple[float, PoolEvent]] = OrderedDict()  # by sequence
        self._next_seq = 1
        self._read_at = 0.0

    async def read(self, now: float) -> Mapping[int, PoolEvent]:
        """By their sequence, oldest first; `now` is in unix seconds. Raises BrokerError."""
        since = now - KEPT_S
        has_paused = self._read_at < since
        start = datetime.datetime.fromtimestamp(since, datetime.UTC) if has_paused else None
        scan = self._js.direct_scan(
            self._stream, self._subject, first_seq=self._next_seq, since=start
        )
        async for message in scan:
            self._next_seq = message.seq + 1
            self._note(message)
        self._read_at = now
        self._forget(since)
        return {seq: event for seq, (_, event) in self._events.items()}

    def _note(self, message: StoredMessage) -> None:
        try:
            event: PoolEvent = decode(PoolEvent, message.data)  # type: ignore[arg-type]
        except ProtocolError as exc:
            log.debug("pool_event_unreadable", error=str(exc))
            return
        self._events[message.seq] = (message.time.timestamp(), event)

    def _forget(self, since: float) -> None:
        while self._events:
            stored_at, _ = next(iter(self._events.values()))
            if stored_at >= since and len(self._events) <= _MAX_EVENTS:
                return
            self._events.popitem(last=False)
