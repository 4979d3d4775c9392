"""Figures of a detokenizer: plain integers on the hot path, read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.telemetry.metrics import METRICS_PREFIX

_HELP = {
    "tokens": "Output tokens that counted.",
    "frames": "Token frames read from the log.",
    "chunks": "Text chunks published.",
    "text_frames": "Messages that carried text chunks.",
    "fenced_entries": "Entries of a past epoch, ignored.",
    "holes": "Entries ahead of what precedes them, ignored until resent.",
    "done_written": "Finished results stored.",
    "bills": "Bills stored.",
    "billed_engine_seconds": "Engine time of these bills.",
    "acks": "Requests that were over, taken out of the queue.",
    "naks": "Requests of dead workers handed back to the queue.",
    "replays": "Replay requests answered.",
    "fence_notices": "Workers told that they lost a request.",
}


@dataclass(slots=True)
class DetokStats:
    """Counters since the start."""

    tokens: int = 0
    frames: int = 0
    chunks: int = 0
    text_frames: int = 0
    fenced_entries: int = 0
    holes: int = 0
    done_written: int = 0
    bills: int = 0
    billed_engine_seconds: float = 0.0
    acks: int = 0
    naks: int = 0
    replays: int = 0
    fence_notices: int = 0


@dataclass(frozen=True, slots=True)
class DetokGauges:
    """What is so now."""

    partitions: int
    requests_live: int
    catching_up: int  # partitions whose log is not yet read to its end
    lag: int  # log messages known to wait for this detokenizer


class DetokCollector(Collector):
    """Shows `jetflock_detok_*`."""

    def __init__(self, stats: DetokStats, gauges: Callable[[], DetokGauges]) -> None:
        self._stats = stats
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        prefix = f"{METRICS_PREFIX}_detok"
        for field in fields(self._stats):
            yield CounterMetricFamily(
                f"{prefix}_{field.name}", _HELP[field.name], getattr(self._stats, field.name)
            )
        gauges = self._gauges()
        yield GaugeMetricFamily(f"{prefix}_partitions", "Partitions owned.", gauges.partitions)
        yield GaugeMetricFamily(
            f"{prefix}_requests_live", "Requests being decoded.", gauges.requests_live
        )
        yield GaugeMetricFamily(
            f"{prefix}_catching_up", "Partitions being re-read.", gauges.catching_up
        )
        yield GaugeMetricFamily(f"{prefix}_lag", "Log messages still to be read.", gauges.lag)
