"""Messages that a role could not read, counted by where they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.errors import UnknownVersion
from shared.subjects import subject_kind
from shared.telemetry.metrics import METRICS_PREFIX


class MalformedCount(Collector):
    """Counted on the event loop only, and read when Prometheus asks.

    `kind` is `version` for one of another protocol version, else `malformed`.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, subject: str, error: Exception) -> None:
        """A message on this subject was refused."""
        kind = "version" if isinstance(error, UnknownVersion) else "malformed"
        self._counts[subject_kind(subject), kind] += 1

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            f"{METRICS_PREFIX}_malformed_messages",
            "Messages that could not be read, by the kind of their subject.",
            labels=["subject", "kind"],
        )
        for labels, count in dict(self._counts).items():
            family.add_metric(labels, count)
        yield family
