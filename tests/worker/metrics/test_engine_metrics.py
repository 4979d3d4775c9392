"""Counters of a worker outlive its engines."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry

from worker.engine_link.engine_messages import EngineLoad
from worker.metrics.engine_metrics import EngineMetrics
from worker.metrics.metric_maker import MetricMaker

LOAD = EngineLoad(0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_counters_go_on_when_an_engine_begins_anew() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(MetricMaker(registry, "m"))
    for queries, hits, preemptions in ((10, 5, 1), (10, 5, 1), (20, 9, 2), (7, 9, 0)):
        load = msgspec.structs.replace(
            LOAD, num_prefix_queries=queries, num_prefix_hits=hits, num_preemptions=preemptions
        )
        metrics.update(load)
    values = [
        registry.get_sample_value(f"jetflock_{name}_total", {"model_name": "m"})
        for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
    ]
    assert values == [27, 18, 2]
