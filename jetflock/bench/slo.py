"""What a request has to keep to count as good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jetflock.bench.request_record import RequestRecord
from shared.errors import ConfigError


def _longest_gap_s(record: RequestRecord) -> float | None:
    return max(record.gaps_s, default=None)


_MEASURES: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda record: record.ttft_s,
    "itl": _longest_gap_s,
    "tpot": lambda record: record.tpot_s,
    "e2el": lambda record: record.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds by measure; a request keeps them all, or it is not good.

    `itl` is the longest gap of the request, `tpot` its mean; what a request has not (an output of
    one token has no gap) it keeps.
    """

    limits_ms: Mapping[str, float]

    @classmethod
    def parse(cls, words: Iterable[str]) -> Slo | None:
        """Reads "ttft:500" and the like; None where there is none. Raises ConfigError."""
        limits: dict[str, float] = {}
        for word in (part for text in words for part in text.replace(",", " ").split()):
            name, _, limit = word.partition(":")
            try:
                limits[name] = float(limit)
            except ValueError:
                limits[name] = -1.0
            if name not in _MEASURES or not 0 < limits[name] < float("inf"):
                raise ConfigError(
                    f"goodput has {word!r}, must be like ttft:500 (in ms), one of "
                    f"{', '.join(_MEASURES)}"
                )
        return cls(limits) if limits else None

    def is_kept(self, record: RequestRecord) -> bool:
        """Never by a request that failed."""
        if not record.is_ok:
            return False
        for name, limit_ms in self.limits_ms.items():
            value_s = _MEASURES[name](record)
            if value_s is not None and value_s * 1e3 > limit_ms:
                return False
        return True
