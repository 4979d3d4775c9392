"""One prompt of the load, and the mixes that draw how long prompts and outputs are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shared.errors import ConfigError

_P90_SIGMAS = 1.2815515655446004  # the standard normal distribution's 90th percentile
_NUM_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text or a chat, and how many tokens are asked for."""

    text: str
    output_len: int
    messages: tuple[dict[str, Any], ...] = ()  # in place of the text


class Lengths(NamedTuple):
    """The lengths of one request, in tokens."""

    input_len: int
    output_len: int


class LengthMix(Protocol):
    """Draws the lengths of one request after the other."""

    @property
    def description(self) -> str: ...

    def draw(self, rng: random.Random) -> Lengths: ...


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Each length is uniform in [len * (1 - ratio), len * (1 + ratio)], as in vLLM's benchmark."""

    input_len: int
    output_len: int
    range_ratio: float = 0.0

    @property
    def description(self) -> str:
        spread = f" (each by up to {self.range_ratio:.0%} more or less)" if self.range_ratio else ""
        return f"{self.input_len} in, {self.output_len} out{spread}"

    def draw(self, rng: random.Random) -> Lengths:
        return Lengths(self._around(self.input_len, rng), self._around(self.output_len, rng))

    def _around(self, length: int, rng: random.Random) -> int:
        low = math.ceil(length * (1 - self.range_ratio))
        high = math.floor(length * (1 + self.range_ratio))
        return max(1, rng.randint(min(low, high), high))


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Log-normal, given by the median and the 90th percentile of both lengths.

    ln(length) is normal with mean ln(median) and deviation ln(p90 / median) / 1.2816. Pairs longer
    than `max_len` together are drawn again: the percentiles are those of what is left.
    """

    input_median: float
    input_p90: float
    output_median: float
    output_p90: float
    max_len: int | None = None

    @property
    def description(self) -> str:
        limit = f", {self.max_len} together at most" if self.max_len else ""
        return f"log-normal, {self.input_median:g} in and {self.output_median:g} out{limit}"

    def draw(self, rng: random.Random) -> Lengths:
        """Raises ConfigError when hardly any pair fits."""
        for _ in range(_NUM_TRIES):
            lengths = Lengths(
                _log_normal(self.input_median, self.input_p90, rng),
                _log_normal(self.output_median, self.output_p90, rng),
            )
            if self.max_len is None or sum(lengths) <= self.max_len:
                return lengths
        raise ConfigError(
            f"a context of {self.max_len} tokens is too short for this mix; use --lengths fixed"
        )


def _log_normal(median: float, p90: float, rng: random.Random) -> int:
    sigma = math.log(p90 / median) / _P90_SIGMAS
    return max(1, round(rng.lognormvariate(math.log(median), sigma)))


def sharegpt_like(max_len: int | None) -> LogNormalLengths:
    """The openchat_sharegpt4 requests of Sarathi-Serve (OSDI 2024, table 2): chats whose prompts
    hold what was said before.
    """
    return LogNormalLengths(1730, 5696, 415, 834, max_len)
