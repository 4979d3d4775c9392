"""A loop that is kept from turning is told; waiting, and a busy machine, are no stalls."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from prometheus_client import CollectorRegistry

from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.metrics import METRICS_PREFIX
from tests.time_to_err import time_to_err


async def slow_looks(registry: CollectorRegistry, kind: str) -> float:
    name = f"{METRICS_PREFIX}_event_loop_{kind}_seconds"
    await time_to_err(0.3)  # the next look is over
    total = registry.get_sample_value(f"{name}_bucket", {"le": "+Inf"})
    quick = registry.get_sample_value(f"{name}_bucket", {"le": "0.05"})
    assert total is not None
    assert quick is not None
    return total - quick


def use_cpu(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.usefixtures("collected_as_in_a_role")
async def test_stalls_are_counted_by_their_cpu_time() -> None:
    registry = CollectorRegistry()
    watching = asyncio.create_task(LoopWatch(registry).run())
    try:
        for _ in range(20):  # short pieces let the loop turn, however late
            use_cpu(0.005)
            await asyncio.sleep(0.01)
        assert await slow_looks(registry, "stall") == 0
        use_cpu(0.35)
        assert await slow_looks(registry, "stall") == 1
        num_late = await slow_looks(registry, "lag")
        time.sleep(0.35)  # noqa: ASYNC251 - as on a machine that has no time for us
        assert await slow_looks(registry, "stall") == 1
        assert await slow_looks(registry, "lag") > num_late
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
