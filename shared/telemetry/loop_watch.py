"""How long an event loop keeps everybody waiting: a timer that looks whether it is late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from shared.telemetry.histograms import EventHistogram
from shared.telemetry.metrics import METRICS_PREFIX

INTERVAL_S = 0.05
_IDLE_INTERVAL_S = 0.25  # 20 looks a second are a seventh of all that an idle role does
_IDLE_SHARE = 0.02  # of a core, below which the loop is idle
_BOUNDS_S = (0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopWatch:
    """Two histograms of one event loop, with an entry for each look.

    `event_loop_lag_seconds` is how late the look came: what clients feel, whoever is to blame.
    `event_loop_stall_seconds` is how much of that the loop's own thread spent computing, so that a
    busy machine is no stall. What begins between two looks shows from when the next one was due: in
    a loop that does next to nothing looks are five times as far apart.
    """

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._lag = EventHistogram(
            f"{METRICS_PREFIX}_event_loop_lag_seconds",
            "How late a timer of the event loop came.",
            _BOUNDS_S,
        )
        self._stall = EventHistogram(
            f"{METRICS_PREFIX}_event_loop_stall_seconds",
            "How late it came because the loop's own thread was computing.",
            _BOUNDS_S,
        )
        registry.register(self._lag)
        registry.register(self._stall)

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        cpu_before, interval_s = self._clock(), INTERVAL_S
        while True:
            due_at = loop.time() + interval_s
            await asyncio.sleep(interval_s)
            cpu_now = self._clock()
            late_s = max(0.0, loop.time() - due_at)
            self._lag.observe(late_s)
            self._stall.observe(min(late_s, cpu_now - cpu_before))
            is_idle = cpu_now - cpu_before < _IDLE_SHARE * interval_s
            interval_s = _IDLE_INTERVAL_S if is_idle else INTERVAL_S
            cpu_before = cpu_now
