"""Prometheus metrics: one registry a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics import MetricWrapperBase

from shared.machine.installation import own_version

METRICS_PREFIX = "jetflock"

M = TypeVar("M", bound=MetricWrapperBase)


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


def children_of(metric: M) -> Callable[..., M]:
    """What `metric.labels` gives, found by the values alone: without its lock and its checks."""
    found: dict[tuple[object, ...], M] = {}

    def child(*values: object) -> M:
        known = found.get(values)
        if known is None:
            known = found[values] = metric.labels(*values)
        return known

    return child


def count_of(counter: Counter) -> int:
    """What it has come to; of one with labels, give the child."""
    [metric] = counter.collect()
    return next(int(each.value) for each in metric.samples if each.name.endswith("_total"))
