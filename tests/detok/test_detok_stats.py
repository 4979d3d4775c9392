"""The figures that Prometheus sees."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from detok.detok_stats import DetokCollector, DetokGauges, DetokStats


def test_counters_and_gauges_have_their_names() -> None:
    stats = DetokStats(tokens=7, fenced_entries=2)
    registry = CollectorRegistry()
    registry.register(DetokCollector(stats, lambda: DetokGauges(4, 3, 1, 9)))
    stats.tokens += 1
    lines = generate_latest(registry).decode().splitlines()
    assert "jetflock_detok_tokens_total 8.0" in lines
    assert "jetflock_detok_fenced_entries_total 2.0" in lines
    assert "jetflock_detok_partitions 4.0" in lines
    assert "jetflock_detok_requests_live 3.0" in lines
    assert "jetflock_detok_catching_up 1.0" in lines
    assert "jetflock_detok_lag 9.0" in lines
