"""How the connection to NATS is: up or not, often made anew or not, quick or slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from nats.aio.client import Client
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.event_wait import beat_s
from shared.nats_client.connection import round_trip
from shared.telemetry.histograms import EventHistogram
from shared.telemetry.metrics import METRICS_PREFIX

_INTERVAL_S = 10.0
_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_PREFIX = f"{METRICS_PREFIX}_nats"
_COUNTS = {
    "reconnects": ("reconnects", "Times that the connection was lost and made anew."),
    "received_messages": ("in_msgs", "Messages received."),
    "sent_messages": ("out_msgs", "Messages sent."),
    "received_bytes": ("in_bytes", "Bytes of messages received."),
    "sent_bytes": ("out_bytes", "Bytes of messages sent."),
}


class NatsWatch(Collector):
    """Sends itself a message every few seconds; everything else the client counts anyway."""

    def __init__(self, nc: Client, registry: CollectorRegistry) -> None:
        self._nc = nc
        self._round_trip = EventHistogram(
            f"{_PREFIX}_round_trip_seconds",
            "From a message to ourselves to its arrival, by way of the server.",
            _BOUNDS_S,
        )
        registry.register(self._round_trip)
        registry.register(self)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            begun_at = time.monotonic()
            if self._nc.is_connected and await round_trip(self._nc):
                self._round_trip.observe(time.monotonic() - begun_at)
            await asyncio.sleep(beat_s(_INTERVAL_S))

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            f"{_PREFIX}_connected", "1 while there is a connection.", int(self._nc.is_connected)
        )
        for name, (key, text) in _COUNTS.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, self._nc.stats[key])
