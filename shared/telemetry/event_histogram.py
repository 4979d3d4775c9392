"""A histogram that an event loop may fill thousands of times a second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family
