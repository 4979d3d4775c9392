"""How much memory CUDA graphs will take, before what is left goes to keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker.engine.cuda.batch.step_shape import StepShape
from worker.engine.cuda.steps.step_graphs import StepGraphs
from worker.engine.device.gpu_device import GpuDevice


def rehearse(
    device: GpuDevice,
    capture: Callable[[Sequence[StepShape]], StepGraphs],
    shapes: Sequence[StepShape],
) -> int:
    """In bytes. Raises NotCapturable.

    The two largest graphs of each kind are captured and given up. The first takes what smaller ones
    use after it, and the second what each of them takes for itself.
    """
    kinds = [
        sorted((shape for shape in shapes if shape.is_decode == is_decode), reverse=True)
        for is_decode in (True, False)
    ]
    before = device.free_bytes()
    graphs = capture([shape for kind in kinds for shape in kind[:2]])
    num_bytes = before - device.free_bytes()
    for kind in kinds:
        if len(kind) > 2:
            num_bytes += (len(kind) - 2) * graphs.taken_bytes[kind[1]]
    graphs.close()
    return max(0, num_bytes)
