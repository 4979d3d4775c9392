"""The range of each number in a body: what is checked is what the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.errors import InvalidRequest
from shared.protocol.logprobs import MAX_TOP_LOGPROBS

MAX_CHOICES = 16
_MAX_DIGITS = 12


class Range(NamedTuple):
    """Bounds of a number; `above` excludes itself."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def check(self, name: str, value: float | None) -> None:
        """None is always fine, a NaN never. Raises InvalidRequest with field and value."""
        if value is None or self._holds(value):
            return
        bounds = []
        if self.low is not None:
            bounds.append(f"at least {_number(self.low)}")
        if self.above is not None:
            bounds.append(f"above {_number(self.above)}")
        if self.high is not None:
            bounds.append(f"at most {_number(self.high)}")
        raise InvalidRequest(f"'{name}' is {value}, must be {' and '.join(bounds)}", param=name)

    def read(self, name: str, text: str) -> int:
        """A whole number of a query. Raises InvalidRequest with field and value."""
        is_number = text.isascii() and text.removeprefix("-").isdecimal()
        if not is_number or len(text) > _MAX_DIGITS:
            raise InvalidRequest(f"'{name}' is {text[:40]!r}, must be a whole number", param=name)
        self.check(name, int(text))
        return int(text)

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema's words for it."""
        names = {"minimum": self.low, "maximum": self.high, "exclusiveMinimum": self.above}
        return {name: bound for name, bound in names.items() if bound is not None}

    def _holds(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )


# Of the fields that mean the same in every body. `max_tokens` also depends on prompt and context.
RANGES: Mapping[str, Range] = {
    "max_tokens": Range(low=0),
    "min_tokens": Range(low=0),
    "n": Range(low=1, high=MAX_CHOICES),
    "best_of": Range(low=1, high=MAX_CHOICES),
    "beam_width": Range(low=1, high=MAX_CHOICES),
    "length_penalty": Range(low=-10, high=10),
    "temperature": Range(low=0, high=2),
    "top_p": Range(above=0, high=1),
    "top_k": Range(low=-1),
    "min_p": Range(low=0, high=1),
    "typical_p": Range(above=0, high=1),
    "xtc_probability": Range(low=0, high=1),
    "xtc_threshold": Range(low=0, high=1),
    "dynatemp_range": Range(low=0, high=2),
    "dynatemp_exponent": Range(above=0, high=10),
    "dry_multiplier": Range(low=0, high=100),
    "dry_base": Range(low=1, high=100),
    "dry_allowed_length": Range(low=0, high=(1 << 31) - 1),
    "dry_penalty_last_n": Range(low=-1, high=(1 << 31) - 1),
    "presence_penalty": Range(low=-2, high=2),
    "frequency_penalty": Range(low=-2, high=2),
    "repetition_penalty": Range(above=0, high=10),
    "repeat_penalty": Range(above=0, high=10),
    "repeat_last_n": Range(low=-1, high=(1 << 31) - 1),
    "seed": Range(low=-(1 << 63), high=(1 << 64) - 1),
    "truncate_prompt_tokens": Range(low=-1),
    "thinking_token_budget": Range(low=-1, high=(1 << 31) - 1),
    "thinking_budget": Range(low=-1, high=(1 << 31) - 1),
    "thinking_budget_tokens": Range(low=-1, high=(1 << 31) - 1),
    "reasoning_budget_tokens": Range(low=-1, high=(1 << 31) - 1),
    "priority": Range(low=-(1 << 31), high=(1 << 31) - 1),
    "top_logprobs": Range(low=0, high=MAX_TOP_LOGPROBS),
    "prompt_logprobs": Range(low=0, high=MAX_TOP_LOGPROBS),
}


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
