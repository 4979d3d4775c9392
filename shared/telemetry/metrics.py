"""Prometheus metrics: one registry a process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.machine.installation import own_version

METRICS_PREFIX = "jetflock"


def new_registry(role: str) -> CollectorRegistry:
    """A registry with the process's own figures (CPU, memory, file descriptors) and its build."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge(
        f"{METRICS_PREFIX}_build_info",
        "1, with the version of this build and the role that it plays.",
        ["version", "role"],
        registry=registry,
    )
    build.labels(own_version(), role).set(1)
    return registry


class EventCounter(Collector):
    """A counter without locks and checks, for the event loop only. One with labels has another for
    each of their values.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        self.value = 0.0
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._of_values: dict[tuple[object, ...], EventCounter] = {}
        self._of_texts: dict[tuple[str, ...], EventCounter] = {}  # as values are told

    def labels(self, *values: object) -> EventCounter:
        """That of these values, which begins at 0."""
        found = self._of_values.get(values)
        if found is None:
            assert len(values) == len(self._labels), f"{self._name} has the labels {self._labels}"
            made = EventCounter(self._name, self._documentation)
            found = self._of_texts.setdefault(tuple(map(str, values)), made)
            self._of_values[values] = found
        return found

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        if not self._labels:
            family.add_metric([], self.value)
        for texts, counter in list(self._of_texts.items()):
            family.add_metric(texts, counter.value)
        yield family
