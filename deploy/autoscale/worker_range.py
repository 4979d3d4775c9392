"""How many workers there may be: `2`, or `0..4`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.errors import ConfigError

_RANGE = re.compile(r"(\d{1,4})(?:\.\.(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """Both ends belong to it."""

    least: int
    most: int

    @classmethod
    def parse(cls, value: int | str) -> WorkerRange:
        """Raises ConfigError."""
        match = _RANGE.fullmatch(str(value).strip())
        if match is None:
            raise ConfigError(f"--workers is {value!r}, must be a number or a range like 0..4")
        least = int(match[1])
        most = int(match[2]) if match[2] is not None else least
        if most < max(1, least):
            raise ConfigError(f"--workers is {value}, must allow at least 1, and not fall")
        return cls(least, most)

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most

    def __str__(self) -> str:
        return str(self.least) if self.is_fixed else f"{self.least} to {self.most}"
