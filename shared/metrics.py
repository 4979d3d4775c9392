"""Prometheus metrics: one registry a process, served by the roles without HTTP of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import start_http_server

METRICS_PREFIX = "jetflock"


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (CPU, memory, file descriptors)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


@contextmanager
def metrics_server(registry: CollectorRegistry, port: int, host: str = "0.0.0.0") -> Iterator[None]:  # noqa: S104
    """Serve /metrics on a thread of its own; port 0 serves nothing."""
    if port == 0:
        yield
        return
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
