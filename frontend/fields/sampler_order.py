"""`samplers`: in which order a request is sampled, as llama.cpp takes it.

A sampler that is not named does nothing, whatever its fields say. An order that comes to the same
as the usual one asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.sampling import SAMPLER_ORDER, SamplingParams

PARAM = "samplers"
_PENALTIES, _DRY = "penalties", "dry"
# By llama.cpp's name, the fields that turn a sampler off.
_OFF: Mapping[str, Mapping[str, Any]] = {
    _PENALTIES: {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    _DRY: {"dry_multiplier": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "typ_p": {"typical_p": 1.0},
    "xtc": {"xtc_probability": 0.0},
}
# The same by one letter each. The last two do nothing without fields that are refused by name.
SAMPLER_LETTERS: Mapping[str, str] = {
    "e": _PENALTIES, "d": _DRY, "t": "temperature", "k": "top_k", "p": "top_p", "m": "min_p",
    "y": "typ_p", "x": "xtc", "s": "top_n_sigma", "a": "adaptive_p",
}  # fmt: skip
SAMPLER_NAMES = frozenset(SAMPLER_LETTERS.values())


def in_order(params: SamplingParams, samplers: list[str] | str) -> SamplingParams:
    """The parameters, with what is not named turned off.

    Raises InvalidRequest or UnsupportedParameter.
    """
    names = [_name_of(each) for each in samplers[: len(SAMPLER_NAMES) + 1]]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"'{PARAM}' names {name!r} twice", param=PARAM)
    for name in _OFF.keys() - set(names):
        params = msgspec.structs.replace(params, **_OFF[name])
    active = [name for name in names if _is_active(params, name)]
    _check_penalties_first(active)
    order = tuple(name for name in active if name in SAMPLER_ORDER)
    usual = tuple(name for name in SAMPLER_ORDER if name in order)
    if order == usual or params.temperature == 0:
        return params
    return msgspec.structs.replace(params, samplers=order)


def _name_of(sampler: str) -> str:
    name = SAMPLER_LETTERS.get(sampler, sampler)
    if name not in SAMPLER_NAMES:
        raise UnsupportedParameter(
            PARAM, f"names {sampler[:40]!r}, known are {', '.join(SAMPLER_LETTERS.values())}"
        )
    return name


def _is_active(params: SamplingParams, name: str) -> bool:
    off = _OFF.get(name, {})
    return any(getattr(params, field) != value for field, value in off.items())


def _check_penalties_first(active: list[str]) -> None:
    """Raises UnsupportedParameter: they change logits before any of the others looks at them."""
    for first in (_DRY, _PENALTIES):
        before = active[: active.index(first)] if first in active else []
        wrong = [name for name in before if name != _PENALTIES]
        if wrong:
            raise UnsupportedParameter(
                PARAM, f"has {first!r} behind {wrong[0]!r}: penalties come first, then dry"
            )
