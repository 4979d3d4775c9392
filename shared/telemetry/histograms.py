"""Histograms that an event loop may fill thousands of times a second, and bounds of buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

# Upper ends of buckets: vLLM's, so that quantiles of both can be compared.
# fmt: off
TTFT_S = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0, 120.0,
)
TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0,
)
REQUEST_S = (
    0.05, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0,
)
# fmt: on
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_NO_LABELS: Mapping[str, str] = {}


class EventHistogram(Collector):
    """A histogram without locks, whose labels are the same for all entries: observing is a
    bisection. For the event loop only."""

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        labels: Mapping[str, str] = _NO_LABELS,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(bounds)
        self._labels = labels
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        self.add_to(family)
        yield family

    def add_to(self, family: HistogramMetricFamily) -> None:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(list(self._labels.values()), buckets, self._sum)


class EventHistograms(Collector):
    """One for each value of a label."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], label: str) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._label = label
        self._by_value: dict[str, EventHistogram] = {}

    def of(self, value: str) -> EventHistogram:
        found = self._by_value.get(value)
        if found is None:
            labels = {self._label: value}
            found = EventHistogram(self._name, self._documentation, self._bounds, labels)
            self._by_value[value] = found
        return found

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        for each in list(self._by_value.values()):
            each.add_to(family)
        yield family
