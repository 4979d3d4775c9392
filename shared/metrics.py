"""Prometheus metrics: one registry a process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

METRICS_PREFIX = "jetflock"


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (CPU, memory, file descriptors)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
