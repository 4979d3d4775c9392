from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.errors import ConfigError
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.short_device import ShortDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from worker.engine.device.gpu_memory import GRAIN_S, FreeMemory, is_out_of_memory, memory_for


def test_what_has_no_room_at_the_start_is_named(tiny_llama: Path) -> None:
    device = ShortDevice()
    device.room_bytes = 1000
    with pytest.raises(ConfigError, match="no memory for a step of max_step_tokens=64 beside the"):
        GpuRig(tiny_llama, device)


def test_a_capture_that_fails_for_want_of_memory_is_told_as_that() -> None:
    """Torch ends the capture on the way out, and that fails, too."""

    def capture() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    with (
        pytest.raises(ConfigError, match="the GPU has no memory for CUDA graphs; fewer take less"),
        memory_for("CUDA graphs", "fewer take less"),
    ):
        capture()


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_drivers_and_libraries_have_words_of_their_own(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words))


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"), memory_for("steps", "none"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_the_driver_is_not_asked_at_each_step() -> None:
    now, device = 0.0, LateDevice(1000)
    free = FreeMemory(device, clock=lambda: now)
    device.num_bytes = 400
    assert free.num_bytes() == 1000
    now = GRAIN_S
    assert free.num_bytes() == 400
