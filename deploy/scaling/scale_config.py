"""The flags by which a number of workers follows its load. docs/autoscaling.md argues them."""

# No `from __future__ import annotations` here: the fields' types are read at run time, by
# subclasses in other modules.

import re
from dataclasses import dataclass
from typing import ClassVar

from deploy.scaling.autoscaler import ScalePolicy
from shared.errors import ConfigError

_RANGE = re.compile(r"(\d{1,4})(?:\.\.(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """How many workers there may be, as `2` or `0..4`: both ends belong to it."""

    least: int
    most: int

    @classmethod
    def parse(cls, value: int | str, flag: str = "--workers") -> "WorkerRange":
        """Raises ConfigError."""
        match = _RANGE.fullmatch(str(value).strip())
        if match is None:
            raise ConfigError(f"{flag} is {value!r}, must be a number or a range like 0..4")
        least = int(match[1])
        most = int(match[2]) if match[2] is not None else least
        if most < max(1, least):
            raise ConfigError(
                f"{flag} is {value}, must be 1 or more, or a range from few to many like 0..4"
            )
        return cls(least, most)

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most

    def __str__(self) -> str:
        return str(self.least) if self.is_fixed else f"{self.least} to {self.most}"


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """What `jetflock serve` and `jetflock autoscale` are told when --workers is a range."""

    help_group: ClassVar[str] = "Scaling, when --workers is a range"

    scale_target_s: float = 10.0
    """Time in which waiting requests are to be worked off, beside half the start of a worker."""
    scale_headroom: float = 1.0
    """Room beside the expected load, in its standard deviations."""
    scale_tolerance: float = 0.1
    """Share by which need and number of workers may differ before the number is changed."""
    scale_idle_s: float = 300.0
    """Time without a request after which the least number of workers is left."""
    scale_down_window_s: float = 60.0
    """Time (and one start more) whose greatest need counts for going down."""
    scale_down_period_s: float = 60.0
    """Time in which at most half of the workers go."""
    scale_up_period_s: float = 15.0
    """Time in which the workers are at most doubled, or scale_up_step more."""
    scale_up_step: int = 4
    """Workers that may be added at once, however few there are."""
    scale_interval_s: float = 1.0
    """Time between two looks at the pool."""

    def scale_policy(self, workers: WorkerRange) -> ScalePolicy:
        """Raises ConfigError."""
        self._check()
        return ScalePolicy(
            min_workers=workers.least,
            max_workers=workers.most,
            target_s=self.scale_target_s,
            headroom=self.scale_headroom,
            tolerance=self.scale_tolerance,
            idle_s=self.scale_idle_s,
            down_window_s=self.scale_down_window_s,
            down_period_s=self.scale_down_period_s,
            up_period_s=self.scale_up_period_s,
            up_step=self.scale_up_step,
        )

    def _check(self) -> None:
        for name in ("scale_target_s", "scale_interval_s", "scale_up_step"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name):g}, must be above 0")
        for name in (
            "scale_headroom",
            "scale_idle_s",
            "scale_down_window_s",
            "scale_down_period_s",
            "scale_up_period_s",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name):g}, must not be below 0")
        if not 0 <= self.scale_tolerance < 1:
            raise ConfigError(
                f"scale_tolerance is {self.scale_tolerance:g}, must be at least 0 and below 1"
            )
