"""Counters of an event loop are told as Prometheus' own are."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from shared.telemetry.metrics import EventCounter


def test_what_is_counted_is_told_by_label() -> None:
    registry = CollectorRegistry()
    plain, answers = EventCounter("a", "A."), EventCounter("b", "B.", ("path", "status"))
    for counter in (plain, answers):
        registry.register(counter)
    plain.inc(2)
    answers.labels("/x", 200).inc()
    answers.labels("/x", "200").inc(2)
    answers.labels("/y", 404)
    assert generate_latest(registry).decode().splitlines() == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        "a_total 2.0",
        "# HELP b_total B.",
        "# TYPE b_total counter",
        'b_total{path="/x",status="200"} 3.0',
        'b_total{path="/y",status="404"} 0.0',
    ]
