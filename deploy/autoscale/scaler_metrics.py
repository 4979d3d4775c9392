"""What a scaler shows of its pool."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from deploy.autoscale.autoscaler import Decision
from deploy.autoscale.pool_snapshot import PoolSnapshot
from shared.telemetry.metrics import METRICS_PREFIX

_PREFIX = f"{METRICS_PREFIX}_autoscaler"


class ScalerMetrics:
    """Set by each look at the pool."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def gauge(name: str, text: str) -> Gauge:
            metric = Gauge(f"{_PREFIX}_{name}", text, ["model_name"], registry=registry)
            return metric.labels(model_name)

        self._wanted = gauge("wanted_workers", "Workers that the pool should have.")
        self._needed = gauge("needed_workers", "The need behind it, without bounds and windows.")
        self._ready = gauge("ready_workers", "Workers that take requests.")
        self._starting = gauge("starting_workers", "Workers that will.")
        self._waiting = gauge("requests_waiting", "Requests that no worker has.")
        self._oldest = gauge("oldest_wait_seconds", "How long the oldest of them has waited.")
        self._changes = Counter(
            f"{_PREFIX}_changes",
            "Decisions that changed the number of workers, by reason.",
            ["model_name", "reason"],
            registry=registry,
        )
        for reason in ("requests", "load", "backlog", "oldest request", "idle"):
            self._changes.labels(model_name, reason)
        self._model_name = model_name

    def note(self, seen: PoolSnapshot, decision: Decision, is_change: bool) -> None:
        self._wanted.set(decision.num_workers)
        self._needed.set(decision.need.num_workers)
        self._ready.set(seen.num_ready)
        self._starting.set(seen.num_starting)
        self._waiting.set(seen.num_waiting)
        self._oldest.set(seen.oldest_wait_s)
        if is_change:
            self._changes.labels(self._model_name, decision.need.reason).inc()
