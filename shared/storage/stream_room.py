"""How full streams are, against the marks below which accepted requests keep their room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from shared.broker.jetstream import JetStream
from shared.errors import BrokerError
from shared.event_wait import LookPace
from shared.telemetry.log import get_logger

# Shares of a stream's bytes or messages. What lies above the second mark is for claims, releases,
# ends and results: whatever was accepted can always end.
ADMISSION_MARK = 0.8  # nothing new is accepted
ENGINE_MARK = 0.9  # engines pause
_MIN_PAUSE_S = 0.02
_IDLE_S = 30.0  # between two looks, while nobody asks for room

log = get_logger(__name__)


class StreamRoom:
    """Looks at some streams again and again. What could not be seen is as it was seen last."""

    def __init__(self, js: JetStream, streams: Iterable[str], interval_s: float) -> None:
        self._js = js
        self._interval_s = interval_s
        self._pace = LookPace(interval_s, max(interval_s, _IDLE_S))
        self._usages = dict.fromkeys(streams, 0.0)
        self._fullest = 0.0  # the highest of them: it is asked for after each step
        self._looked_at = float("-inf")

    def usage(self, stream: str) -> float:
        """Share of its limit."""
        self._pace.use()
        return self._usages[stream]

    def is_above(self, mark: float) -> bool:
        """Whether one of them is."""
        self._pace.use()
        return self._fullest >= mark

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            before = dict(self._usages)
            now, looked_at = time.monotonic(), self._looked_at
            await asyncio.gather(*(self._look(stream) for stream in self._usages))
            self._looked_at = now
            await self._pace.wait(self._pause_s(before, now - looked_at))

    def _pause_s(self, before: dict[str, float], elapsed_s: float) -> float:
        """Shorter where a stream fills so quickly that a mark would be passed unseen."""
        pause_s = self._interval_s
        for stream, usage in self._usages.items():
            per_s = (usage - before[stream]) / elapsed_s
            if per_s > 0 and usage < ENGINE_MARK:
                pause_s = min(pause_s, (ENGINE_MARK - usage) / per_s / 2)
        return max(pause_s, _MIN_PAUSE_S)

    async def _look(self, stream: str) -> None:
        try:
            info = await self._js.api(f"STREAM.INFO.{stream}")
        except BrokerError as exc:
            log.debug("stream_not_seen", stream=stream, error=str(exc))
            self._pace.note_failure()
            return
        usage, before = usage_of(info), self._usages[stream]
        self._usages[stream] = usage
        self._fullest = max(self._usages.values())
        for mark in (ADMISSION_MARK, ENGINE_MARK):
            if before < mark <= usage:
                log.warning("stream_nearly_full", stream=stream, usage=round(usage, 3), mark=mark)
            elif usage < mark <= before:
                log.info("stream_has_room", stream=stream, usage=round(usage, 3), mark=mark)


def usage_of(info: dict[str, Any]) -> float:
    """The share that is used by a stream's own figures, the fuller of bytes and messages; a limit
    of -1 is none.
    """
    state, config = info["state"], info["config"]
    shares = [
        int(state[used]) / int(config[limit])
        for used, limit in (("bytes", "max_bytes"), ("messages", "max_msgs"))
        if int(config.get(limit, -1)) > 0
    ]
    return max(shares, default=0.0)
