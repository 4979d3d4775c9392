"""Prometheus metrics: one registry a process."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)

METRICS_PREFIX = "jetflock"


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (CPU, memory, file descriptors)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def count_of(counter: Counter) -> int:
    """What it has come to; of one with labels, give the child."""
    [metric] = counter.collect()
    return next(int(each.value) for each in metric.samples if each.name.endswith("_total"))
