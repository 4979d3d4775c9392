"""How long each phase of a role's start took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.machine.process_age import process_age_s
from shared.telemetry.metrics import METRICS_PREFIX


class StartupPhases(Collector):
    """One after the other; the phase that runs shows its time so far.

    A phase that is entered again begins anew: of a restart the last one counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._phase = ""
        self._entered_at = 0.0

    def note_process(self) -> None:
        """Call first: so far it has imported its modules, and perhaps waited for NATS."""
        if (age_s := process_age_s(os.getpid())) is not None:
            self._took_s["process"] = age_s

    def enter(self, phase: str) -> None:
        """The phase before it is over. Without effect in the same phase."""
        if phase != self._phase:
            self.end()
            self._phase, self._entered_at = phase, self._clock()

    def end(self) -> None:
        """The last one is over: the role is ready."""
        if self._phase:
            self._took_s[self._phase] = self._clock() - self._entered_at
        self._phase = ""

    def collect(self) -> Iterable[Metric]:
        took_s, phase = dict(self._took_s), self._phase
        if phase:
            took_s[phase] = self._clock() - self._entered_at
        family = GaugeMetricFamily(
            f"{METRICS_PREFIX}_startup_phase_seconds",
            "How long a phase of the last start took, or takes.",
            labels=["phase"],
        )
        for name, seconds in took_s.items():
            family.add_metric([name], seconds)
        yield family
