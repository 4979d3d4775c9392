"""Where a model is loaded, and as what."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.device.gpu_device import GpuDevice
from worker.engine.loading.load_progress import LoadProgress
from worker.engine.request.step_limits import StepLimits
from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class LoadSite:
    """What every `ModelLoader` is made with: the same for all models."""

    config: EngineConfig
    step: StepLimits
    gpu: GpuDevice | None  # None: the CPU
    progress: LoadProgress
