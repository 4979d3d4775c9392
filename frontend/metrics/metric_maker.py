"""Makes the metrics of a frontend: one prefix, one registry, one label for the model."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.telemetry.event_histogram import EventHistogram
from shared.telemetry.metrics import METRICS_PREFIX

PREFIX = f"{METRICS_PREFIX}_frontend"


class MetricMaker:
    """Names are without the prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self._registry)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        labels = ["model_name"]
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=bounds, registry=self._registry)

    def event_histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> EventHistogram:
        histogram = EventHistogram(f"{PREFIX}_{name}", text, bounds)
        self._registry.register(histogram)
        return histogram
