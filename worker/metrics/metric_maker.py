"""Makes a worker's metrics, each with a label for its model."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge

from shared.telemetry.histograms import EventHistogram
from shared.telemetry.metrics import METRICS_PREFIX, EventCounter


class MetricMaker:
    """Makes metrics in one registry; what has one more label is made for all its values at once."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        self.model_name = model_name

    def gauge(self, name: str, text: str) -> Gauge:
        return self._gauge(name, text).labels(self.model_name)

    def gauges(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Gauge]:
        metric = self.gauges_as_needed(name, text, label)
        return {value: metric.labels(self.model_name, value) for value in values}

    def gauges_as_needed(self, name: str, text: str, label: str) -> Gauge:
        """Its values come to be known later: `labels(model_name, value)`."""
        return self._gauge(name, text, label)

    def counter(self, name: str, text: str) -> EventCounter:
        return self._counter(name, text).labels(self.model_name)

    def counters(
        self, name: str, text: str, label: str, values: Iterable[str]
    ) -> dict[str, EventCounter]:
        metric = self.counters_as_needed(name, text, label)
        return {value: metric.labels(self.model_name, value) for value in values}

    def counters_as_needed(self, name: str, text: str, label: str) -> EventCounter:
        """Its values come to be known later: `labels(model_name, value)`."""
        return self._counter(name, text, label)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> EventHistogram:
        labels = {"model_name": self.model_name}
        made = EventHistogram(f"{METRICS_PREFIX}_{name}", text, bounds, labels)
        self.registry.register(made)
        return made

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        names = ["model_name", *labels]
        return Gauge(f"{METRICS_PREFIX}_{name}", text, names, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> EventCounter:
        made = EventCounter(f"{METRICS_PREFIX}_{name}", text, ("model_name", *labels))
        self.registry.register(made)
        return made
