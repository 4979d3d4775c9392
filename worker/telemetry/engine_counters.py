"""What an engine counts from its start on, as counters that outlive it."""

from __future__ import annotations

from worker.engine_link.engine_messages import EngineLoad
from worker.telemetry.worker_metrics import WorkerMetrics


class EngineCounters:
    """Adds to the worker's counters what each load has more than the one before."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._counters = (
            metrics.prefix_cache_queries,
            metrics.prefix_cache_hits,
            metrics.num_preemptions,
            metrics.num_drafted,
            metrics.num_accepted,
        )
        self._told = (0,) * len(self._counters)

    def update(self, load: EngineLoad) -> None:
        values = (
            load.num_prefix_queries,
            load.num_prefix_hits,
            load.num_preemptions,
            load.num_drafted,
            load.num_accepted,
        )
        if any(value < told for value, told in zip(values, self._told, strict=True)):
            self._told = (0,) * len(values)  # another engine, which begins with nothing
        for counter, value, told in zip(self._counters, values, self._told, strict=True):
            counter.inc(value - told)
        self._told = values
