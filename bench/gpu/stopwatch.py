"""How long work takes on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

WARM_UPS = 3


def device_seconds(work: Callable[[], object], num_rounds: int = 20) -> float:
    """Median of one call, by the GPU's own clock; on a CPU, where tries are made, by its."""
    if not torch.cuda.is_available():
        return statistics.median(_host_seconds(work) for _ in range(2))
    for _ in range(WARM_UPS):
        work()
    events = [
        [torch.cuda.Event(enable_timing=True) for _ in ("begin", "end")] for _ in range(num_rounds)
    ]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    milliseconds: list[float] = [begin.elapsed_time(end) for begin, end in events]
    return statistics.median(milliseconds) / 1000


def _host_seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
