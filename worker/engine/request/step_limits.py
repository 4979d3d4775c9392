"""How much a step may hold: as configured, or what suits the device."""

from __future__ import annotations

from typing import NamedTuple, Self

from shared.errors import ConfigError
from worker.engine_link.engine_config import EngineConfig


class StepLimits(NamedTuple):
    """A GPU reads its weights for hundreds of requests in the time that it takes for one."""

    max_running: int  # requests that decode in one step
    max_step_tokens: int
    has_overlap: bool  # steps are launched before the one before is done

    @classmethod
    def of(cls, config: EngineConfig, *, on_gpu: bool) -> Self:
        """Raises ConfigError when a step has no token for each request."""
        defaults = ON_GPU if on_gpu else ON_CPU
        limits = cls(
            defaults.max_running if config.max_running is None else config.max_running,
            defaults.max_step_tokens if config.max_step_tokens is None else config.max_step_tokens,
            defaults.has_overlap if config.overlap is None else config.overlap,
        )
        if limits.max_running > limits.max_step_tokens:
            raise ConfigError(
                f"max_step_tokens={limits.max_step_tokens} leaves no token for each of "
                f"max_running={limits.max_running} requests"
            )
        return limits


ON_CPU = StepLimits(max_running=32, max_step_tokens=512, has_overlap=False)
ON_GPU = StepLimits(max_running=256, max_step_tokens=8192, has_overlap=True)
