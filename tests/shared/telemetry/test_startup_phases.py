"""Each phase of a start has its time; the last start counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.telemetry.startup_phases import StartupPhases


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def seconds(registry: CollectorRegistry, phase: str) -> float | None:
    return registry.get_sample_value("jetflock_startup_phase_seconds", {"phase": phase})


def test_phases_follow_each_other_and_the_last_start_counts() -> None:
    clock, registry = Clock(), CollectorRegistry()
    phases = StartupPhases(clock)
    registry.register(phases)
    assert seconds(registry, "connect") is None
    phases.enter("connect")
    clock.now += 2
    phases.enter("load weights")
    clock.now += 5
    phases.enter("load weights")  # it tells its progress
    assert seconds(registry, "load weights") == 5  # it is not over
    clock.now += 1
    phases.end()
    clock.now += 50
    assert (seconds(registry, "connect"), seconds(registry, "load weights")) == (2, 6)
    phases.enter("load weights")  # the engine died
    clock.now += 4
    phases.end()
    assert (seconds(registry, "connect"), seconds(registry, "load weights")) == (2, 4)


def test_what_came_before_is_the_age_of_the_process() -> None:
    registry, phases = CollectorRegistry(), StartupPhases()
    registry.register(phases)
    phases.note_process()
    age_s = seconds(registry, "process")
    assert age_s is not None
    assert 0 < age_s < 86_400
