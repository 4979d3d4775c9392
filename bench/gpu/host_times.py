"""What the host does in each step of an engine, and for how long the GPU waits for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.timed_device import Launch, TimedDevice
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import StepHandle, StepResult


@dataclass(slots=True)
class StepTimes:
    """Seconds of the host, from one plan to the next."""

    begin_s: float
    schedule_s: float = 0.0  # who runs
    plan_s: float = 0.0  # the step's integers
    launch_s: float = 0.0  # copies, graph, kernels
    wait_s: float = 0.0  # for the GPU: not the host's own
    num_rows: int = 0
    launches: list[Launch] = field(default_factory=list)


class HostTimes:
    """Watches an engine from its inside: what it calls is the same, with a clock around it."""

    def __init__(self, engine: Any, device: TimedDevice) -> None:
        self._device = device
        self.steps: list[StepTimes] = []
        pipeline = engine._steps
        self._next_batch = pipeline._scheduler.next_batch
        self._launch = pipeline._runner.launch
        pipeline._scheduler.next_batch = self._timed_next_batch
        pipeline._runner.launch = self._timed_launch

    def clear(self) -> None:
        self.steps = []

    def _timed_next_batch(
        self, token_budget: int, prefill_budget: int | None = None
    ) -> ScheduleBatch | None:
        step = StepTimes(time.perf_counter())
        self.steps.append(step)
        batch: ScheduleBatch | None = self._next_batch(token_budget, prefill_budget)
        step.schedule_s = time.perf_counter() - step.begin_s
        return batch

    def _timed_launch(self, batch: ScheduleBatch) -> StepHandle:
        step = self.steps[-1]
        step.num_rows = len(batch.entries) if batch.num_tokens == len(batch.entries) else 0
        self._device.launches.clear()
        begin_s = time.perf_counter()
        handle = self._launch(batch)
        took_s = time.perf_counter() - begin_s
        step.launches = list(self._device.launches)
        step.launch_s = sum(launch.host_s for launch in step.launches)
        step.plan_s = took_s - step.launch_s
        return _TimedStep(handle, self)

    def waited(self, seconds: float) -> None:
        """In the step that was planned last."""
        self.steps[-1].wait_s += seconds

    def decode_facts(self, num_rows: int) -> dict[str, Any]:
        """Medians over the steps in which so many requests decoded, and no other came before."""
        pairs = [
            (step, behind)
            for step, behind in zip(self.steps, self.steps[1:], strict=False)
            if step.num_rows == behind.num_rows == num_rows
        ]
        pairs = pairs[len(pairs) // 4 :]
        if not pairs:
            return {}
        steps = [step for step, _ in pairs]
        periods_s = [behind.begin_s - step.begin_s for step, behind in pairs]
        facts = {
            "schedule_ms": _median_ms([step.schedule_s for step in steps]),
            "plan_ms": _median_ms([step.plan_s for step in steps]),
            "launch_ms": _median_ms([step.launch_s for step in steps]),
            "wait_ms": _median_ms([step.wait_s for step in steps]),
        }
        own_s = [period_s - step.wait_s for period_s, step in zip(periods_s, steps, strict=True)]
        facts["host_ms"] = _median_ms(own_s)
        parts = facts["schedule_ms"] + facts["plan_ms"] + facts["launch_ms"]
        facts["post_ms"] = max(0.0, facts["host_ms"] - parts)
        return facts | _idle_facts(pairs)


class _TimedStep:
    """A handle, with a clock around its end."""

    def __init__(self, handle: StepHandle, times: HostTimes) -> None:
        self._handle = handle
        self._times = times

    def choose(self) -> None:
        self._handle.choose()

    def collect(self) -> StepResult:
        begin_s = time.perf_counter()
        result = self._handle.collect()
        self._times.waited(time.perf_counter() - begin_s)
        return result


def _idle_facts(pairs: Sequence[tuple[StepTimes, StepTimes]]) -> dict[str, Any]:
    """Of the GPU between two steps; nothing on a CPU."""
    neighbours = [
        (step.launches[-1], behind.launches[0])
        for step, behind in pairs
        if step.launches and behind.launches and behind.launches[0].begin is not None
    ]
    if not neighbours:
        return {}
    return {
        "idle_us": statistics.median(b.idle_s(a) for a, b in neighbours) * 1e6,
        "ahead": sum(b.was_ahead for _, b in neighbours) / len(neighbours),
    }


def _median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3
