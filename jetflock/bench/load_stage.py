"""One stretch of load of one strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A closed loop of `concurrency` clients, or with `rate` an open one, which `concurrency` caps.

    It ends after `num_requests`, or when no more are sent after `duration_s`; those that run are
    waited for.
    """

    concurrency: int | None
    rate: float | None = None  # requests a second
    burstiness: float = 1.0
    num_requests: int | None = None
    duration_s: float | None = None

    @property
    def label(self) -> str:
        if self.rate is None:
            return f"{self.concurrency} at a time"
        cap = "" if self.concurrency is None else f", at most {self.concurrency} at a time"
        return f"{self.rate:g} a second{cap}"

    @property
    def strength(self) -> float:
        """What a sweep goes through."""
        return float(self.concurrency or 0) if self.rate is None else self.rate


def swept(stage: LoadStage, sweep: str | None) -> Sequence[LoadStage]:
    """A stage for each value of "1,2,4" or "concurrency:1,2,4" or "rate:1,2,4"; `stage` of none.

    Raises ConfigError.
    """
    if sweep is None:
        return [stage]
    kind, colon, values = sweep.partition(":")
    if not colon:
        kind, values = "concurrency", sweep
    try:
        numbers = [float(word) for word in values.split(",")]
    except ValueError:
        numbers = []
    is_whole = kind == "rate" or all(number.is_integer() for number in numbers)
    if kind not in ("concurrency", "rate") or not numbers or min(numbers) <= 0 or not is_whole:
        raise ConfigError(f"sweep is {sweep!r}, must be like 1,2,4,8 or rate:0.5,1,2")
    if kind == "rate":
        return [replace(stage, rate=number) for number in numbers]
    return [replace(stage, rate=None, concurrency=int(number)) for number in numbers]
